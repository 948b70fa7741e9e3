-- Reads held jobs whose owner has been silent, by id. Writes nothing.
--
-- KEYS[1] rows
-- KEYS[2] processing
-- ARGV[1] since  microseconds since 1970, by the server's clock: the last beat is no later
-- ARGV[2] limit  jobs at most
-- Replies: id, row (nil when it is gone) and last beat of each, flat
-- Cost: O(S log S), S silent jobs

local rows, processing = KEYS[1], KEYS[2]

local silent = redis.call('ZRANGEBYSCORE', processing, '-inf', ARGV[1])
table.sort(silent) -- Ids are hexadecimal digits, which every locale sorts alike.
local orphans = {}
for position = 1, math.min(#silent, tonumber(ARGV[2])) do
  local id = silent[position]
  orphans[#orphans + 1] = id
  orphans[#orphans + 1] = redis.call('HGET', rows, id)
  orphans[#orphans + 1] = redis.call('ZSCORE', processing, id)
end
return orphans
