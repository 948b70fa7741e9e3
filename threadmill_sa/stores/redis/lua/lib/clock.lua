-- Instants as decimal text of microseconds since 1970; numbers of that size are exact until 2255.

local function text(micros)
  return string.format('%.0f', micros)
end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- An injected instant, or the server's own.
local function moment(given)
  if given == '' then
    return clock()
  end
  return tonumber(given)
end
