-- Accepts a nudge of an enabled recurring task. The earliest request of those pending is kept.
--
-- KEYS[1] tasks
-- KEYS[2] sequences
-- KEYS[3] nudged
-- KEYS[4] nudge_records
-- ARGV[1] name
-- ARGV[2] now     microseconds since 1970; empty: the server's clock
-- ARGV[3] record  1 or 0: whether the acceptance is recorded as well
-- Replies: {accepted, revision}, {disabled}, {unknown_task}
-- Cost: O(log N), N nudged tasks

local tasks, sequences, nudged, nudge_records = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

--@include clock
--@include records

local name = ARGV[1]
local found = redis.call('HMGET', tasks, 'g:' .. name, 'r:' .. name)
-- A request is looked for whether or not there is one: a hand may have taken it.
local gate, pending = found[1], redis.call('ZSCORE', nudged, name) and found[2]
if not gate then
  return { 'unknown_task' }
end
if string.sub(gate, 1, 1) ~= '1' then
  return { 'disabled' }
end
local revision = redis.call('HINCRBY', sequences, 'revision', 1)
local recorded = ARGV[3] == '1'
-- The server's clock only goes on, so a pending request is the earlier one: a burst costs less.
-- It is asked once: that of some servers goes on within a script.
local now = (recorded or not pending or ARGV[2] ~= '') and moment(ARGV[2])
if recorded then
  record_nudge(revision, name, gate, now, false)
end
redis.call('HSET', tasks, 'r:' .. name, revision)
if now then
  redis.call('ZADD', nudged, 'LT', text(now), name)
end
return { 'accepted', revision }
