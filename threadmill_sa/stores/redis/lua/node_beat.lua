-- Writes the heartbeat of a node and of the jobs that it holds; the server's clock alone counts.
--
-- KEYS[1] nodes
-- KEYS[2] beats
-- KEYS[3] rows
-- KEYS[4] processing
-- ARGV[1] node  its id
-- ARGV[2] info  what it tells of itself, kept as it is
-- ARGV[3] held  packed list of {id, token}
-- Replies: ids of the jobs that it holds no longer
-- Cost: O(H log P), H jobs named, P held by all nodes

local nodes, beats, rows, processing = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

--@include clock
--@include rows

-- A key that holds something else ends the script here, before it has written anything.
redis.call('ZCARD', beats)
redis.call('HLEN', rows)
redis.call('ZCARD', processing)
local node = ARGV[1]
local now = text(clock())
redis.call('HSET', nodes, node .. ':info', ARGV[2])
redis.call('HSETNX', nodes, node .. ':started', now)
redis.call('ZADD', beats, now, node)
local lost = {}
for _, held in ipairs(cmsgpack.unpack(ARGV[3])) do
  local row = read_row(held[1])
  if row and row[STATE] == 'PROCESSING' and row[OWNER] == node and row[TOKEN] == held[2] then
    redis.call('ZADD', processing, now, held[1])
  else
    lost[#lost + 1] = held[1]
  end
end
return lost
