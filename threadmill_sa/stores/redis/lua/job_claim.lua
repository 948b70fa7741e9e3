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
-- Replies: id, row and payload (nil when it has none) of each job taken, flat
-- Cost: O(Q * H * (log M + limit)), Q queues, H handlers, M members of the index

local rows, payloads, index, counters, processing = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

--@include clock
--@include rows
--@include index

local node, limit = ARGV[1], tonumber(ARGV[3])
local now = moment(ARGV[2])
local beat = text(clock()) -- Liveness is the server's to judge, whatever clock was injected.
local handlers = cmsgpack.unpack(ARGV[4])
local queues = ARGV[5] == '' and { false } or cmsgpack.unpack(ARGV[5])
local claimed = {}

local function heads(queue, most)
  local found = {}
  for _, handler in ipairs(handlers) do
    local prefix = lane(handler, queue)
    -- Past the prefix come hexadecimal digits only, which all sort before a g.
    local members = redis.call('ZRANGEBYLEX', index, '[' .. prefix, '(' .. prefix .. 'g',
      'LIMIT', 0, most)
    for _, member in ipairs(members) do
      found[#found + 1] = string.sub(member, #prefix + 1)
    end
  end
  table.sort(found)
  return found
end

local function take(id)
  local row = read_row(id)
  leave(id, row)
  row[STATE], row[STATE_AT], row[STARTED_AT], row[OWNER] = 'PROCESSING', text(now), text(now), node
  row[ATTEMPT], row[TOKEN] = row[ATTEMPT] + 1, row[TOKEN] + 1
  enter(id, row)
  local packed = cmsgpack.pack(row)
  redis.call('HSET', rows, id, packed)
  redis.call('ZADD', processing, beat, id)
  claimed[#claimed + 1] = id
  claimed[#claimed + 1] = packed
  claimed[#claimed + 1] = redis.call('HGET', payloads, id)
end

local left = limit
for _, queue in ipairs(queues) do
  if left > 0 then
    local found = heads(queue, left)
    for position = 1, math.min(left, #found) do
      take(string.sub(found[position], 9))
    end
    left = left - math.min(left, #found)
  end
end
settle()
return claimed
