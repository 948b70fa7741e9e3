-- What becomes of a job that an index names and no sound row bears out. Needs `rows`, `payloads`,
-- `index`, `counters`, `delayed`, `processing`, `trail`, lib/clock, lib/rows and lib/index.
-- What is taken out of an index counts no more; the names that have counts are those it is under.

local counted = { ['s:'] = {}, ['q:'] = {}, ['t:'] = {} }
for _, field in ipairs(redis.call('HKEYS', counters)) do
  local names = counted[string.sub(field, 1, 2)] or {}
  names[#names + 1] = string.sub(field, 3)
end

-- Whether a row says what it is of, in words that the index can be ordered by.
local function placeable(id, row)
  return #id == TAIL - 8 and identified(row) and #row[PLACE] == 8
    and not string.find(row[HANDLER] .. row[QUEUE], '%z')
end

local function clear_lanes(handler, tail)
  redis.call('ZREM', index, lane(handler) .. tail)
  for _, queue in ipairs(counted['q:']) do
    if redis.call('ZREM', index, lane(handler, queue) .. tail) == 1 then
      shift('q:' .. queue, -1)
    end
  end
end

-- Take the job out of all that finds jobs but the instances of its task.
local function clear(id, row)
  local unfinished = false
  for _, state in ipairs(STATES) do
    if redis.call('ZREM', index, 's\0' .. state .. '\0' .. id) == 1 then
      shift('s:' .. state, -1)
      unfinished = unfinished or UNFINISHED[state]
    end
  end
  for _, task in ipairs(counted['t:']) do
    if unfinished and redis.call('ZSCORE', index, 'i\0' .. task .. '\0' .. id) then
      shift('t:' .. task, -1)
    end
  end
  if row and FINISHED[row[STATE]] then
    redis.call('ZREM', index, age(row[STATE], tonumber(row[STATE_AT]) or 0) .. id)
  end
  redis.call('ZREM', delayed, id)
  redis.call('ZREM', processing, id)
end

local function disown(id, called)
  if called then
    redis.call('ZREM', index, 'i\0' .. called .. '\0' .. id)
  end
  for _, task in ipairs(counted['t:']) do
    redis.call('ZREM', index, 'i\0' .. task .. '\0' .. id)
  end
end

-- Forget what is kept beside a row that is gone.
local function forget(id)
  local number = 1
  while redis.call('HDEL', trail, id .. ':' .. number) == 1 do
    number = number + 1
  end
  redis.call('HDEL', trail, id .. ':result')
  redis.call('HDEL', payloads, id)
end

-- End the job as one that cannot be run, with every field as a reader takes it.
local function quarantine(id, row, now, reason, message)
  for _, position in ipairs(COUNTS) do
    if not is_count(row[position], MOST[position]) then
      row[position] = 0
    end
  end
  for position, otherwise in pairs({ [CREATED_AT] = now, [SCHEDULED_AT] = false,
    [STARTED_AT] = false }) do
    if not string.find(tostring(row[position]), '^%-?%d+$') then
      row[position] = otherwise
    end
  end
  row[STATE], row[STATE_AT], row[OWNER] = 'QUARANTINED', now, false
  local told = cmsgpack.pack({ row[STATE], now, row[ATTEMPT], reason, message })
  repeat
    row[ENTRIES] = row[ENTRIES] + 1
  until redis.call('HSETNX', trail, id .. ':' .. row[ENTRIES], told) == 1
  enter(id, row)
  write_row(id, row)
end

-- Let the job be found where its sound row says.
local function restore(id, row)
  if row[STATE] == 'SCHEDULED' and type(row[SCHEDULED_AT]) ~= 'string' then
    row[SCHEDULED_AT] = row[STATE_AT] -- It waits for no instant, so it is due.
    write_row(id, row)
  end
  enter(id, row)
  if row[STATE] == 'SCHEDULED' then
    redis.call('ZADD', delayed, row[SCHEDULED_AT], id)
  elseif row[STATE] == 'PROCESSING' then
    redis.call('ZADD', processing, text(clock()), id)
  end
end
