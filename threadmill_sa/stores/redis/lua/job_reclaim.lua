-- Ends the attempts of silent owners, each only if it is as it was read: same token, no new beat.
--
-- KEYS[1] rows
-- KEYS[2] index
-- KEYS[3] counters
-- KEYS[4] delayed
-- KEYS[5] processing
-- KEYS[6] trail
-- ARGV[1] now       microseconds since 1970; empty: the server's clock
-- ARGV[2] outcomes  packed list, see lib/ends
-- ARGV[3] beats     packed list: the last beat that was read with each
-- Replies: one of recorded, lost for each outcome, in order
-- Cost: O(N log M), N outcomes, M members of the index

local rows, index, counters = KEYS[1], KEYS[2], KEYS[3]
local delayed, processing, trail = KEYS[4], KEYS[5], KEYS[6]

--@include clock
--@include rows
--@include index
--@include ends

-- A key that holds something else ends the script here, before it has written anything.
redis.call('HLEN', rows)
redis.call('ZCARD', index)
redis.call('HLEN', counters)
redis.call('ZCARD', delayed)
redis.call('HLEN', trail)
local now = moment(ARGV[1])
local beats = cmsgpack.unpack(ARGV[3])
local verdicts = {}
for position, outcome in ipairs(cmsgpack.unpack(ARGV[2])) do
  local silent = redis.call('ZSCORE', processing, outcome[1]) == beats[position]
  local row = silent and read_row(outcome[1])
  if row and row[TOKEN] == outcome[2] then
    end_attempt(row, outcome, now)
    verdicts[position] = 'recorded'
  else
    verdicts[position] = 'lost'
  end
end
settle()
return verdicts
