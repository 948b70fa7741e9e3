-- Counts the unfinished jobs of recurring tasks anew where a counter that holds a task back is no
-- count, or where none of the newest instances bears it out.
--
-- KEYS[1] index
-- KEYS[2] counters
-- ARGV[1] names  packed list
-- ARGV[2] limit  with more unfinished jobs in the store a counter is left that may be right
-- Replies: name, what its counter said and how many there are, of each that was wrong, flat
-- Cost: O(N log M), N names, M members of the index; for each that is counted O(U log M),
--   U unfinished jobs

local index, counters = KEYS[1], KEYS[2]

--@include rows
--@include index

local NEWEST = 10

local function borne_out(name)
  local prefix = 'i\0' .. name .. '\0'
  local newest = redis.call('ZREVRANGEBYLEX', index, '(' .. prefix .. 'g', '[' .. prefix,
    'LIMIT', 0, NEWEST)
  for _, member in ipairs(newest) do
    local id = string.sub(member, #prefix + 1)
    for state in pairs(UNFINISHED) do
      if redis.call('ZSCORE', index, 's\0' .. state .. '\0' .. id) then
        return true
      end
    end
  end
  return false
end

local function each_unfinished(command, look)
  for state in pairs(UNFINISHED) do
    local prefix = 's\0' .. state .. '\0'
    look(redis.call(command, index, '[' .. prefix, '(' .. prefix .. 'g'), #prefix)
  end
end

local function too_many()
  local number = 0
  each_unfinished('ZLEXCOUNT', function(found) number = number + found end)
  return number > tonumber(ARGV[2])
end

local function counted(name)
  local number = 0
  each_unfinished('ZRANGEBYLEX', function(found, cut)
    for _, member in ipairs(found) do
      if redis.call('ZSCORE', index, 'i\0' .. name .. '\0' .. string.sub(member, cut + 1)) then
        number = number + 1
      end
    end
  end)
  return number
end

local righted = {}
for _, name in ipairs(cmsgpack.unpack(ARGV[1])) do
  local field = 't:' .. name
  local said = redis.call('HGET', counters, field)
  local may_be = said and string.find(said, '^[1-9]%d*$')
  if said and not (may_be and (borne_out(name) or too_many())) then
    local number = counted(name)
    if number == 0 then
      redis.call('HDEL', counters, field)
    else
      redis.call('HSET', counters, field, number)
    end
    if number == 0 or said ~= tostring(number) then
      for _, told in ipairs({ name, said, number }) do
        righted[#righted + 1] = told
      end
    end
  end
end
return righted
