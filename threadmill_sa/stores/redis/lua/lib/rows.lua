-- The fields of a job's row by position. New ones are added at the end: releases share the rows.
-- Needs `rows`. Absent values are false, since nil would cut the array. The host alone looks at the
-- last one, 15: whether the job has a payload.

local STATE, STATE_AT, CREATED_AT, SCHEDULED_AT, STARTED_AT = 1, 2, 3, 4, 5
local ATTEMPT, TOKEN, OWNER, ENTRIES = 6, 7, 8, 9
local QUEUE, HANDLER, PLACE, TASK, REST = 10, 11, 12, 13, 14

local STATES = { 'AWAITING', 'SCHEDULED', 'ENQUEUED', 'PROCESSING', 'PROCESSED', 'SUCCEEDED',
  'FAILED', 'DELETED', 'QUARANTINED' }
local KNOWN = {}
for _, state in ipairs(STATES) do
  KNOWN[state] = true
end
local TEXTS, COUNTS = { QUEUE, HANDLER, PLACE, REST }, { ATTEMPT, TOKEN, ENTRIES }
-- A loop over the entries must end soon; model/limits.py has the same bounds.
local MOST = { [ATTEMPT] = 2147483647, [TOKEN] = 2147483647, [ENTRIES] = 100000 }

-- Whether the fields that no attempt changes can be worked with.
local function identified(row)
  for _, position in ipairs(TEXTS) do
    if type(row[position]) ~= 'string' then
      return false
    end
  end
  return row[TASK] == false or type(row[TASK]) == 'string'
end

local function is_count(value, most)
  return type(value) == 'number' and value >= 0 and value <= most and value % 1 == 0
end

-- Whether the scripts can work with the row; what the host alone reads is not judged here.
local function sound(row)
  for _, position in ipairs(COUNTS) do
    if not is_count(row[position], MOST[position]) then
      return false
    end
  end
  return KNOWN[row[STATE]] and identified(row)
end

-- The fields of a stored row, or nil when a hand has left something else there.
local function unpacked(packed)
  local fine, row = pcall(cmsgpack.unpack, packed)
  return fine and type(row) == 'table' and row or nil
end

-- The row, and what is stored; no row when it is gone (nothing is stored) or damaged.
local function read_row(id)
  local packed = redis.call('HGET', rows, id)
  local row = packed and unpacked(packed)
  return row and sound(row) and row or nil, packed
end

local function write_row(id, row)
  local packed = cmsgpack.pack(row)
  redis.call('HSET', rows, id, packed)
  return packed
end
