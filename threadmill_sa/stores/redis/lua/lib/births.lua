-- New jobs. Needs `rows`, `payloads`, `delayed`, lib/clock, lib/rows and lib/index.
-- A record is {id, state, due or false, delay or false, queue, handler, place, task or false,
-- rest, payload or false}; a delay is in microseconds.

local CHUNK = 1000 -- arguments of one command: an even number, far below what Lua can unpack
local born = { rows = {}, payloads = {}, index = {} }

local function put(list, one, other)
  list[#list + 1] = one
  list[#list + 1] = other
end

-- The elements of `list` for the command that begins at `first`.
local function chunk(list, first)
  return unpack(list, first, math.min(first + CHUNK - 1, #list))
end

-- The first id that is stored already or given twice, or nil.
local function taken(records)
  local ids, seen = {}, {}
  for position, record in ipairs(records) do
    if seen[record[1]] then
      return record[1]
    end
    ids[position], seen[record[1]] = record[1], true
  end
  for first = 1, #ids, CHUNK do
    local found = redis.call('HMGET', rows, chunk(ids, first))
    for position, row in ipairs(found) do
      if row then
        return ids[first + position - 1]
      end
    end
  end
end

local function bear(record, now)
  local id, due, task = record[1], record[3], record[8]
  if record[4] then
    due = text(now + record[4])
  end
  local row = { record[2], text(now), text(now), due, false, 0, 0, false, 0,
    record[5], record[6], record[7], task, record[9], record[10] ~= false }
  put(born.rows, id, cmsgpack.pack(row))
  if record[10] then
    put(born.payloads, id, record[10])
  end
  count(row, 1)
  for _, member in ipairs(members(id, row)) do
    put(born.index, 0, member)
  end
  if task then
    put(born.index, 0, 'i\0' .. task .. '\0' .. id)
  end
  if row[STATE] == 'SCHEDULED' then
    redis.call('ZADD', delayed, due, id)
  end
end

-- Write what was born, many with one command.
local function deliver()
  for first = 1, #born.rows, CHUNK do
    redis.call('HSET', rows, chunk(born.rows, first))
  end
  for first = 1, #born.payloads, CHUNK do
    redis.call('HSET', payloads, chunk(born.payloads, first))
  end
  for first = 1, #born.index, CHUNK do
    redis.call('ZADD', index, chunk(born.index, first))
  end
end
