-- Deletes all that was recorded. The sequences stay, so later records are in order.
--
-- KEYS[1] nudge_records
-- KEYS[2] snapshots
-- Replies: the number of nudges that were recorded
-- Cost: O(1); the memory is freed in the background

local nudge_records, snapshots = KEYS[1], KEYS[2]

local recorded = redis.call('HLEN', nudge_records)
redis.call('UNLINK', nudge_records, snapshots)
return recorded
