-- Reads one job with everything that is stored of it. Writes nothing.
--
-- KEYS[1] rows
-- KEYS[2] payloads
-- KEYS[3] processing
-- KEYS[4] trail
-- ARGV[1] id
-- Replies: nothing; or row, payload, last beat and result (nil where absent), then the history,
--   oldest first; a damaged row comes without one
-- Cost: O(E), E entries of the history

local rows, payloads, processing, trail = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

--@include rows

local id = ARGV[1]
local row, packed = read_row(id)
if not packed then
  return {}
end
local found = {
  packed,
  redis.call('HGET', payloads, id),
  redis.call('ZSCORE', processing, id),
  redis.call('HGET', trail, id .. ':result'),
}
for number = 1, row and row[ENTRIES] or 0 do
  found[#found + 1] = redis.call('HGET', trail, id .. ':' .. number)
end
return found
