-- Stores new jobs, all or none.
--
-- KEYS[1] rows
-- KEYS[2] payloads
-- KEYS[3] index
-- KEYS[4] counters
-- KEYS[5] delayed
-- ARGV[1] now      microseconds since 1970; empty: the server's clock
-- ARGV[2] records  packed list, see lib/births
-- Replies: {stored}; {taken, id} when an id exists or comes twice, and nothing is written
-- Cost: O(N log M), N records, M members of the index

local rows, payloads, index, counters, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

--@include clock
--@include rows
--@include index
--@include births

local now = moment(ARGV[1])
local records = cmsgpack.unpack(ARGV[2])
local id = taken(records)
if id then
  return { 'taken', id }
end
-- A key that holds something else ends the script here, before it has written anything.
redis.call('HLEN', payloads)
redis.call('ZCARD', index)
redis.call('HLEN', counters)
redis.call('ZCARD', delayed)
for _, record in ipairs(records) do
  bear(record, now)
end
deliver()
settle()
return { 'stored' }
