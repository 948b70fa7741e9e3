-- Replaces the definition of a recurring task if it is still as it was read. Its gate and its
-- pending nudge stay.
--
-- KEYS[1] tasks
-- KEYS[2] due
-- ARGV[1] name
-- ARGV[2] was_definition
-- ARGV[3] was_gate
-- ARGV[4] was_state
-- ARGV[5] definition
-- ARGV[6] state
-- ARGV[7] look_at  microseconds since 1970; empty: never
-- Replies: one of edited, changed
-- Cost: O(log N), N tasks with a next run

local tasks, due = KEYS[1], KEYS[2]

--@include tasks

local name = ARGV[1]
if not unchanged(name, ARGV[2], ARGV[3], ARGV[4]) then
  return 'changed'
end
-- A key that holds something else ends the script here, before it has written anything.
redis.call('ZCARD', due)
redis.call('HSET', tasks, 'd:' .. name, ARGV[5])
write_state(name, ARGV[6], ARGV[7])
return 'edited'
