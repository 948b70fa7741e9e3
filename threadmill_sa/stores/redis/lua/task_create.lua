-- Registers a recurring task under a new epoch, unless the name is registered already.
--
-- KEYS[1] tasks
-- KEYS[2] sequences
-- KEYS[3] due
-- ARGV[1] name
-- ARGV[2] definition
-- ARGV[3] enabled  1 or 0
-- ARGV[4] state
-- ARGV[5] look_at  microseconds since 1970; empty: never
-- Replies: one of created, exists
-- Cost: O(log N), N tasks with a next run

local tasks, sequences, due = KEYS[1], KEYS[2], KEYS[3]

--@include tasks

local name = ARGV[1]
if redis.call('HEXISTS', tasks, 'd:' .. name) == 1 then
  return 'exists'
end
local epoch = redis.call('HINCRBY', sequences, 'epoch', 1)
redis.call('HSET', tasks, 'd:' .. name, ARGV[2], 'g:' .. name, ARGV[3] .. ':' .. epoch)
write_state(name, ARGV[4], ARGV[5])
return 'created'
