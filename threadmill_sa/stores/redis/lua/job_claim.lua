-- Takes ready jobs for one node, by (priority descending, id) within each queue.
--
-- KEYS[1] rows
-- KEYS[2] payloads
-- KEYS[3] index
-- KEYS[4] counters
-- KEYS[5] processing
-- ARGV[1] node      id of the claiming node
-- ARGV[2] now       microseconds since 1970; empty: the server's clock
-- ARGV[3] limit     jobs at most
-- ARGV[4] handlers  packed list of different names
-- ARGV[5] queues    packed list, emptied in this order; empty text: all queues as one
-- Replies: two lists: id, row and payload (nil when it has none) of each job taken, flat; and what
--   stood in a lane for no ready job, each as lua/job_set_aside takes it
-- Cost: O(Q * H * (log M + limit)), Q queues, H handlers, M members of the index

local rows, payloads, index, counters, processing = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

--@include clock
--@include rows
--@include index

local node, left = ARGV[1], tonumber(ARGV[3])
local now = moment(ARGV[2])
local beat = text(clock()) -- Liveness is the server's to judge, whatever clock was injected.
local handlers = cmsgpack.unpack(ARGV[4])
local queues = ARGV[5] == '' and { false } or cmsgpack.unpack(ARGV[5])
local claimed, misfits = {}, {}

-- What a lane names and no row bears out is taken out of it, so that it stops nobody again.
local function drop(handler, queue, tail, packed)
  if redis.call('ZREM', index, lane(handler, queue) .. tail) == 1 and queue then
    shift('q:' .. queue, -1)
  end
  misfits[#misfits + 1] = { string.sub(tail, 9), packed, handler, tail }
end

local function heads(queue, most)
  local found = {}
  for _, handler in ipairs(handlers) do
    local prefix = lane(handler, queue)
    -- Past the prefix come hexadecimal digits only, which all sort before a g.
    local members = redis.call('ZRANGEBYLEX', index, '[' .. prefix, '(' .. prefix .. 'g',
      'LIMIT', 0, most)
    for _, member in ipairs(members) do
      local tail = string.sub(member, #prefix + 1)
      if #tail == TAIL then
        found[#found + 1] = tail .. handler
      else
        drop(handler, queue, tail, false)
      end
    end
  end
  table.sort(found)
  return found
end

local function take(handler, queue, tail)
  local id = string.sub(tail, 9)
  local row, packed = read_row(id)
  if not row or row[STATE] ~= 'ENQUEUED' or not stands(row, handler, queue, tail) then
    return drop(handler, queue, tail, packed)
  end
  leave(id, row)
  row[STATE], row[STATE_AT], row[STARTED_AT], row[OWNER] = 'PROCESSING', text(now), text(now), node
  row[ATTEMPT], row[TOKEN] = row[ATTEMPT] + 1, row[TOKEN] + 1
  enter(id, row)
  packed = write_row(id, row)
  redis.call('ZADD', processing, beat, id)
  local at, payload = #claimed, redis.call('HGET', payloads, id)
  claimed[at + 1], claimed[at + 2], claimed[at + 3] = id, packed, payload
end

-- A key that holds something else ends the script here, before it has written anything.
redis.call('HLEN', payloads)
redis.call('HLEN', counters)
redis.call('ZCARD', processing)
for _, queue in ipairs(queues) do
  if left > 0 then
    local found = heads(queue, left)
    for position = 1, math.min(left, #found) do
      take(string.sub(found[position], TAIL + 1), queue, string.sub(found[position], 1, TAIL))
    end
    left = left - math.min(left, #found)
  end
end
settle()
return { claimed, misfits }
