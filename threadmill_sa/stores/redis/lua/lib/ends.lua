-- The end of one attempt. Needs `delayed`, `processing`, `trail`, lib/clock, lib/rows, lib/index.
-- An outcome is {id, token, next state, wait or false, result or false, entries}; a wait is in
-- microseconds, an entry is {state, reason, message or false}.

local function end_attempt(row, outcome, now)
  local id = outcome[1]
  for _, entry in ipairs(outcome[6]) do
    row[ENTRIES] = row[ENTRIES] + 1
    local told = { entry[1], text(now), row[ATTEMPT], entry[2], entry[3] }
    redis.call('HSET', trail, id .. ':' .. row[ENTRIES], cmsgpack.pack(told))
  end
  if outcome[5] then
    redis.call('HSET', trail, id .. ':result', outcome[5])
  end
  leave(id, row)
  row[STATE], row[STATE_AT], row[OWNER] = outcome[3], text(now), false
  if row[STATE] == 'ENQUEUED' then
    row[ATTEMPT] = row[ATTEMPT] - 1 -- The token keeps growing: the released attempt cannot end.
  end
  if outcome[4] then
    row[SCHEDULED_AT] = text(now + outcome[4])
    redis.call('ZADD', delayed, row[SCHEDULED_AT], id)
  end
  redis.call('ZREM', processing, id)
  enter(id, row)
  write_row(id, row)
end
