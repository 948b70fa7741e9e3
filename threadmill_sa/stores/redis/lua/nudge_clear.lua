-- Clears the pending nudge of a recurring task if its revision is one of those observed, and notes
-- it where nudges are recorded.
--
-- KEYS[1] tasks
-- KEYS[2] nudged
-- KEYS[3] sequences
-- KEYS[4] nudge_records
-- KEYS[5] snapshots
-- ARGV[1] name
-- ARGV[2] observed  packed list of revisions, as text
-- Replies: one of cleared, absent
-- Cost: O(N), N revisions observed

local tasks, nudged, sequences = KEYS[1], KEYS[2], KEYS[3]
local nudge_records, snapshots = KEYS[4], KEYS[5]

--@include clock
--@include tasks
--@include records

-- A key that holds something else ends the script here, before it has written anything.
redis.call('ZCARD', nudged)
redis.call('HLEN', sequences)
redis.call('LLEN', snapshots)
local name = ARGV[1]
local pending = redis.call('HGET', tasks, 'r:' .. name)
for _, revision in ipairs(cmsgpack.unpack(ARGV[2])) do
  if revision == pending then
    drop_nudge(name)
    record_drop(name, 'cleared')
    return 'cleared'
  end
end
return 'absent'
