-- Moves a job that no node holds to DELETED.
--
-- KEYS[1] rows
-- KEYS[2] index
-- KEYS[3] counters
-- KEYS[4] delayed
-- KEYS[5] trail
-- ARGV[1] id
-- ARGV[2] now     microseconds since 1970; empty: the server's clock
-- ARGV[3] reason  a word for the history
-- Replies: deleted, already, running, unknown, damaged; only the first writes
-- Cost: O(log M), M members of the index

local rows, index, counters, delayed, trail = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

--@include clock
--@include rows
--@include index

local id = ARGV[1]
local row, packed = read_row(id)
if not row then
  return packed and 'damaged' or 'unknown'
elseif row[STATE] == 'DELETED' then
  return 'already'
elseif row[STATE] == 'PROCESSING' then
  return 'running'
end
-- A key that holds something else ends the script here, before it has written anything.
redis.call('ZCARD', index)
redis.call('HLEN', counters)
redis.call('ZCARD', delayed)
redis.call('HLEN', trail)
local now = text(moment(ARGV[2]))
leave(id, row)
redis.call('ZREM', delayed, id)
row[STATE], row[STATE_AT], row[ENTRIES] = 'DELETED', now, row[ENTRIES] + 1
local told = { row[STATE], now, row[ATTEMPT], ARGV[3], false }
redis.call('HSET', trail, id .. ':' .. row[ENTRIES], cmsgpack.pack(told))
enter(id, row)
write_row(id, row)
settle()
return 'deleted'
