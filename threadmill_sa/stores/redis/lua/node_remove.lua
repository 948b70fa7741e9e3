-- Forgets a node that has ended.
--
-- KEYS[1] nodes
-- KEYS[2] beats
-- ARGV[1] node  its id
-- Replies: one of removed, unknown
-- Cost: O(log N), N nodes

local nodes, beats = KEYS[1], KEYS[2]
local node = ARGV[1]

-- A key that holds something else ends the script here, before it has written anything.
redis.call('ZCARD', beats)
redis.call('HDEL', nodes, node .. ':info', node .. ':started')
if redis.call('ZREM', beats, node) == 1 then
  return 'removed'
end
return 'unknown'
