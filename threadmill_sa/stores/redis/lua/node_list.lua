-- Reads every registered node. Writes nothing.
--
-- KEYS[1] nodes
-- KEYS[2] beats
-- Replies: id, info, start and last beat of each, flat
-- Cost: O(N), N nodes

local nodes, beats = KEYS[1], KEYS[2]
local found = redis.call('ZRANGE', beats, 0, -1, 'WITHSCORES')
local listed = {}
for position = 1, #found, 2 do
  local node = found[position]
  listed[#listed + 1] = node
  listed[#listed + 1] = redis.call('HGET', nodes, node .. ':info')
  listed[#listed + 1] = redis.call('HGET', nodes, node .. ':started')
  listed[#listed + 1] = found[position + 1]
end
return listed
