-- Makes delayed jobs ready whose time has come, the earliest first.
--
-- KEYS[1] rows
-- KEYS[2] index
-- KEYS[3] counters
-- KEYS[4] delayed
-- ARGV[1] now    microseconds since 1970; empty: the server's clock
-- ARGV[2] limit  jobs at most
-- Replies: how many, then what waited without a row that says so, as lua/job_set_aside takes it
-- Cost: O(limit * log M), M members of the index

local rows, index, counters, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

--@include clock
--@include rows
--@include index

-- A key that holds something else ends the script here, before it has written anything.
redis.call('HLEN', rows)
redis.call('ZCARD', index)
redis.call('HLEN', counters)
local now = text(moment(ARGV[1]))
local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, ARGV[2])
local promoted, misfits = 0, {}
for _, id in ipairs(due) do
  local row, packed = read_row(id)
  redis.call('ZREM', delayed, id)
  if row and row[STATE] == 'SCHEDULED' then
    leave(id, row)
    row[STATE], row[STATE_AT] = 'ENQUEUED', now
    enter(id, row)
    write_row(id, row)
    promoted = promoted + 1
  else
    misfits[#misfits + 1] = { id, packed, false, false }
  end
end
settle()
return { promoted, misfits }
