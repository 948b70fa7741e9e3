-- Forgets the nodes that have been silent for too long.
--
-- KEYS[1] nodes
-- KEYS[2] beats
-- ARGV[1] since  microseconds since 1970, by the server's clock: the last beat is no later
-- Replies: how many
-- Cost: O(S log N), S silent ones of N nodes

local nodes, beats = KEYS[1], KEYS[2]

local silent = redis.call('ZRANGEBYSCORE', beats, '-inf', ARGV[1])
for _, node in ipairs(silent) do
  redis.call('HDEL', nodes, node .. ':info', node .. ':started')
  redis.call('ZREM', beats, node)
end
return #silent
