-- Forgets the nodes that have been silent for too long.
--
-- KEYS[1] nodes
-- KEYS[2] beats
-- ARGV[1] silence  microseconds, by the server's clock
-- Replies: how many
-- Cost: O(S log N), S silent ones of N nodes

local nodes, beats = KEYS[1], KEYS[2]

--@include clock

local limit = text(clock() - tonumber(ARGV[1]))
local silent = redis.call('ZRANGEBYSCORE', beats, '-inf', '(' .. limit)
for _, node in ipairs(silent) do
  redis.call('HDEL', nodes, node .. ':info', node .. ':started')
  redis.call('ZREM', beats, node)
end
return #silent
