-- Pauses or resumes a recurring task if it is still as it was read, and drops its pending nudge:
-- one that is older than the flip never runs after it. Notes it where nudges are recorded.
--
-- KEYS[1] tasks
-- KEYS[2] due
-- KEYS[3] nudged
-- KEYS[4] sequences
-- KEYS[5] nudge_records
-- KEYS[6] snapshots
-- ARGV[1] name
-- ARGV[2] was_definition
-- ARGV[3] was_gate
-- ARGV[4] was_state
-- ARGV[5] definition
-- ARGV[6] enabled  1 or 0
-- ARGV[7] state
-- ARGV[8] look_at  microseconds since 1970; empty: never
-- Replies: one of flipped, changed
-- Cost: O(log N), N tasks

local tasks, due, nudged = KEYS[1], KEYS[2], KEYS[3]
local sequences, nudge_records, snapshots = KEYS[4], KEYS[5], KEYS[6]

--@include clock
--@include tasks
--@include records

local name = ARGV[1]
if not unchanged(name, ARGV[2], ARGV[3], ARGV[4]) then
  return 'changed'
end
-- A key that holds something else ends the script here, before it has written anything.
redis.call('ZCARD', due)
redis.call('ZCARD', nudged)
redis.call('HLEN', sequences)
redis.call('LLEN', snapshots)
local epoch = string.sub(ARGV[3], 3)
redis.call('HSET', tasks, 'd:' .. name, ARGV[5], 'g:' .. name, ARGV[6] .. ':' .. epoch)
write_state(name, ARGV[7], ARGV[8])
drop_nudge(name)
record_drop(name, ARGV[6] == '1' and 'enabled' or 'disabled')
return 'flipped'
