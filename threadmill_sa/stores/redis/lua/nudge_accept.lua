-- Accepts a nudge of an enabled recurring task. The earliest request of those pending is kept.
--
-- KEYS[1] tasks
-- KEYS[2] sequences
-- KEYS[3] nudged
-- ARGV[1] name
-- ARGV[2] now  microseconds since 1970; empty: the server's clock
-- Replies: {accepted, revision}, {disabled}, {unknown_task}
-- Cost: O(log N), N nudged tasks

local tasks, sequences, nudged = KEYS[1], KEYS[2], KEYS[3]

--@include clock

local name = ARGV[1]
local found = redis.call('HMGET', tasks, 'g:' .. name, 'r:' .. name)
local gate, pending = found[1], found[2]
if not gate then
  return { 'unknown_task' }
end
if string.sub(gate, 1, 1) ~= '1' then
  return { 'disabled' }
end
local revision = redis.call('HINCRBY', sequences, 'revision', 1)
redis.call('HSET', tasks, 'r:' .. name, revision)
-- The server's clock only goes on, so a pending request is the earlier one: a burst costs less.
if not pending or ARGV[2] ~= '' then
  redis.call('ZADD', nudged, 'LT', text(moment(ARGV[2])), name)
end
return { 'accepted', revision }
