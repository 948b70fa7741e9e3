-- The fields of a job's row by position. New ones are added at the end: releases share the rows.
-- Needs `rows`. Absent values are false, since nil would cut the array.

local STATE, STATE_AT, CREATED_AT, SCHEDULED_AT, STARTED_AT = 1, 2, 3, 4, 5
local ATTEMPT, TOKEN, OWNER, ENTRIES = 6, 7, 8, 9
local QUEUE, HANDLER, PLACE, TASK, REST = 10, 11, 12, 13, 14

local function read_row(id)
  local packed = redis.call('HGET', rows, id)
  return packed and cmsgpack.unpack(packed)
end

local function write_row(id, row)
  redis.call('HSET', rows, id, cmsgpack.pack(row))
end
