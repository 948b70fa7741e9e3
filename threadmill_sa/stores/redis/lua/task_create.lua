-- Registers a recurring task under a new epoch if it is still as it was read: unknown, or damaged
-- by a hand. A pending nudge stays.
--
-- KEYS[1] tasks
-- KEYS[2] sequences
-- KEYS[3] due
-- ARGV[1] name
-- ARGV[2] was_definition  empty: there was none; so for the next two
-- ARGV[3] was_gate
-- ARGV[4] was_state
-- ARGV[5] definition
-- ARGV[6] enabled  1 or 0
-- ARGV[7] state
-- ARGV[8] look_at  microseconds since 1970; empty: never
-- Replies: one of created, changed
-- Cost: O(log N), N tasks with a next run

local tasks, sequences, due = KEYS[1], KEYS[2], KEYS[3]

--@include tasks

local name = ARGV[1]
if not unchanged(name, ARGV[2], ARGV[3], ARGV[4]) then
  return 'changed'
end
-- A key that holds something else ends the script here, before it has written anything.
redis.call('ZCARD', due)
local epoch = redis.call('HINCRBY', sequences, 'epoch', 1)
redis.call('HSET', tasks, 'd:' .. name, ARGV[5], 'g:' .. name, ARGV[6] .. ':' .. epoch)
write_state(name, ARGV[7], ARGV[8])
return 'created'
