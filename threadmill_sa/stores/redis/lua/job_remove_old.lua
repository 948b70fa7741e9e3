-- Removes finished jobs that are long in one state, the oldest first, with what is kept of them.
--
-- KEYS[1] rows
-- KEYS[2] payloads
-- KEYS[3] index
-- KEYS[4] counters
-- KEYS[5] trail
-- ARGV[1] state
-- ARGV[2] now    microseconds since 1970; empty: the server's clock
-- ARGV[3] age    microseconds that they have been in the state at least
-- ARGV[4] limit  jobs at most
-- Replies: how many, then what stood in the index for no such job, as lua/job_set_aside takes it;
--   both count
-- Cost: O(limit * (log M + E)), M members of the index, E entries of a history

local rows, payloads, index, counters, trail = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

--@include clock
--@include rows
--@include index

local state, misfits = ARGV[1], {}
local past = moment(ARGV[2]) - tonumber(ARGV[3]) + 1

local function remove(id, row)
  leave(id, row)
  if row[TASK] then
    redis.call('ZREM', index, 'i\0' .. row[TASK] .. '\0' .. id)
  end
  redis.call('HDEL', rows, id)
  redis.call('HDEL', payloads, id)
  redis.call('HDEL', trail, id .. ':result')
  for number = 1, row[ENTRIES] do
    redis.call('HDEL', trail, id .. ':' .. number)
  end
end

-- A key that holds something else ends the script here, before it has written anything.
redis.call('HLEN', rows)
redis.call('HLEN', payloads)
redis.call('HLEN', counters)
redis.call('HLEN', trail)
local old = redis.call('ZRANGEBYLEX', index, '[f\0' .. state .. '\0', '(' .. age(state, past),
  'LIMIT', 0, ARGV[4])
for _, member in ipairs(old) do
  local id = string.sub(member, -32)
  local row, packed = read_row(id)
  if row and row[STATE] == state then
    remove(id, row)
  else
    misfits[#misfits + 1] = { id, packed, false, false }
  end
  redis.call('ZREM', index, member) -- Also when no row bears it out: it would stay in front.
end
settle()
return { #old, misfits }
