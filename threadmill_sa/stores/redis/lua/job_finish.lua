-- Records the ends of attempts, each only while its token holds the job for the node.
--
-- KEYS[1] rows
-- KEYS[2] index
-- KEYS[3] counters
-- KEYS[4] delayed
-- KEYS[5] processing
-- KEYS[6] trail
-- ARGV[1] node      id of the node that held the jobs
-- ARGV[2] now       microseconds since 1970; empty: the server's clock
-- ARGV[3] outcomes  packed list, see lib/ends
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
redis.call('ZCARD', processing)
redis.call('HLEN', trail)
local node = ARGV[1]
local now = moment(ARGV[2])
local verdicts = {}
for position, outcome in ipairs(cmsgpack.unpack(ARGV[3])) do
  local row = read_row(outcome[1])
  if row and row[STATE] == 'PROCESSING' and row[OWNER] == node and row[TOKEN] == outcome[2] then
    end_attempt(row, outcome, now)
    verdicts[position] = 'recorded'
  else
    verdicts[position] = 'lost'
  end
end
settle()
return verdicts
