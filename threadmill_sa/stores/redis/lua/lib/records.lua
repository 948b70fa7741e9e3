-- What is recorded of nudges and runs. Needs lib/clock, and what it writes of `nudge_records`,
-- `snapshots` and `sequences`. Instants and revisions are text.
--
-- A recorded nudge, by its revision, is {task, epoch, instant, whether it is a promise}; a promise
-- draws a revision that no pending nudge has. A snapshot is {task, event, last revision drawn,
-- instant, job or false, attempt}. One script at a time: it shows all up to its revision.

local function record_nudge(revision, name, gate, now, promised)
  local epoch = string.sub(gate, 3)
  redis.call('HSET', nudge_records, revision, cmsgpack.pack({ name, epoch, text(now), promised }))
end

local function record_snapshot(name, event, now, job, attempt)
  local seen = redis.call('HGET', sequences, 'revision') or '0'
  redis.call('RPUSH', snapshots, cmsgpack.pack({ name, event, seen, text(now), job, attempt }))
end

-- Nothing that was recorded of the task by now will run any more. Whoever drops nudges notes it,
-- recording or not: an operator's tool ends pauses too.
local function record_drop(name, event)
  if redis.call('EXISTS', nudge_records) == 1 then
    record_snapshot(name, event, clock(), false, 0)
  end
end
