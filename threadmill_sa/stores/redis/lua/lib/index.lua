-- Where a job is found, by its state. Needs `index`, `counters` and lib/rows.
--
-- All members of the index have score 0, so they are ordered by their bytes:
--   s NUL state NUL id                  every job
--   i NUL task NUL id                   every instance of a recurring task
--   q NUL handler NUL queue NUL place id   ready jobs of one queue and handler
--   a NUL handler NUL place id          ready jobs of one handler, all queues
--   f NUL state NUL instant id          finished jobs by the instant of their last change
-- A place is 8 hexadecimal digits that grow as the priority falls; an id is 32, an instant 16
-- decimal ones. Names hold no NUL.

local TAIL = 40 -- place and id
local FINISHED = { SUCCEEDED = true, FAILED = true, DELETED = true, QUARANTINED = true }
local UNFINISHED = { AWAITING = true, SCHEDULED = true, ENQUEUED = true, PROCESSING = true }
local shifts = {}

local function shift(field, by)
  shifts[field] = (shifts[field] or 0) + by
end

-- Begin a counter anew that a hand has left as no number, or below zero: that of a state by the
-- index, that of a queue from nothing. A task's stays, and holds it until lua/task_recount counts.
local function restart(field)
  local kind, prefix = string.sub(field, 1, 2), 's\0' .. string.sub(field, 3) .. '\0'
  if kind ~= 't:' then
    redis.call('HDEL', counters, field)
  end
  local number = redis.call('ZLEXCOUNT', index, '[' .. prefix, '(' .. prefix .. 'g')
  if kind == 's:' and number > 0 then
    redis.call('HSET', counters, field, number)
  end
end

-- Write the counters once for the whole script; one that falls to zero is dropped.
local function settle()
  for field, by in pairs(shifts) do
    local number = by == 0 and 1 or redis.pcall('HINCRBY', counters, field, by)
    if number == 0 and by < 0 then
      redis.call('HDEL', counters, field)
    elseif type(number) ~= 'number' or number <= 0 then
      restart(field)
    end
  end
end

local function lane(handler, queue)
  if queue then
    return 'q\0' .. handler .. '\0' .. queue .. '\0'
  end
  return 'a\0' .. handler .. '\0'
end

-- Whether a ready job is found where its row says.
local function stands(row, handler, queue, tail)
  return row[HANDLER] == handler and (not queue or row[QUEUE] == queue)
    and row[PLACE] == string.sub(tail, 1, 8)
end

local function count(row, by)
  shift('s:' .. row[STATE], by)
  if row[STATE] == 'ENQUEUED' then
    shift('q:' .. row[QUEUE], by)
  end
  if row[TASK] and UNFINISHED[row[STATE]] then
    shift('t:' .. row[TASK], by)
  end
end

local function age(state, micros)
  return 'f\0' .. state .. '\0' .. string.format('%016.0f', micros)
end

local function members(id, row)
  local state = 's\0' .. row[STATE] .. '\0' .. id
  if FINISHED[row[STATE]] then
    return { state, age(row[STATE], tonumber(row[STATE_AT]) or 0) .. id }
  end
  if row[STATE] ~= 'ENQUEUED' then
    return { state }
  end
  local place = row[PLACE] .. id
  return { state, lane(row[HANDLER], row[QUEUE]) .. place, lane(row[HANDLER]) .. place }
end

local function enter(id, row)
  count(row, 1)
  for _, member in ipairs(members(id, row)) do
    redis.call('ZADD', index, 0, member)
  end
end

local function leave(id, row)
  count(row, -1)
  redis.call('ZREM', index, unpack(members(id, row)))
end
