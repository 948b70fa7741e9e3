-- Removes a recurring task with its schedule and its pending nudge. The sequences stay, so no
-- later registration draws an epoch or a revision again.
--
-- KEYS[1] tasks
-- KEYS[2] due
-- KEYS[3] nudged
-- ARGV[1] name
-- Replies: one of deleted, unknown_task
-- Cost: O(log N), N tasks

local tasks, due, nudged = KEYS[1], KEYS[2], KEYS[3]

--@include tasks

-- A key that holds something else ends the script here, before it has written anything.
redis.call('ZCARD', due)
redis.call('ZCARD', nudged)
local name = ARGV[1]
if redis.call('HDEL', tasks, 'd:' .. name, 'g:' .. name, 's:' .. name) == 0 then
  return 'unknown_task'
end
redis.call('ZREM', due, name)
drop_nudge(name)
return 'deleted'
