-- Sets the indexes of jobs right whose rows a hand has deleted, damaged, or moved from where an
-- index names them. A row that says what it is of is quarantined; any other is kept, unlisted.
--
-- KEYS[1] rows
-- KEYS[2] payloads
-- KEYS[3] index
-- KEYS[4] counters
-- KEYS[5] delayed
-- KEYS[6] processing
-- KEYS[7] trail
-- ARGV[1] now      microseconds since 1970; empty: the server's clock
-- ARGV[2] reason   of a quarantine
-- ARGV[3] misfits  packed list of {id, row as it was read, handler and tail of the lane that named
--   it, task whose instance it was called, what is wrong}; all but the id false when absent
-- Replies: one of gone, quarantined, dropped, indexed, changed for each, in order
-- Cost: O(N * (C + log M)), N misfits, C counters, M members of the index

local rows, payloads, index, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local delayed, processing, trail = KEYS[5], KEYS[6], KEYS[7]

--@include clock
--@include rows
--@include index
--@include damage

-- A key that holds something else ends the script here, before it has written anything.
redis.call('HLEN', rows)
redis.call('HLEN', payloads)
redis.call('ZCARD', index)
redis.call('ZCARD', delayed)
redis.call('ZCARD', processing)
redis.call('HLEN', trail)
local now = text(moment(ARGV[1]))
local verdicts = {}
for position, misfit in ipairs(cmsgpack.unpack(ARGV[3])) do
  local id, handler, tail, task, wrong = misfit[1], misfit[3], misfit[4], misfit[5], misfit[6]
  local packed = redis.call('HGET', rows, id)
  local row = packed and unpacked(packed)
  if packed ~= misfit[2] then
    verdicts[position] = 'changed'
  else
    local placed = row and placeable(id, row)
    clear(id, row)
    if handler then
      clear_lanes(handler, tail)
    end
    if placed then
      clear_lanes(row[HANDLER], row[PLACE] .. id)
    else
      disown(id, task)
    end
    if not packed then
      forget(id)
      verdicts[position] = 'gone'
    elseif not placed then
      verdicts[position] = 'dropped'
    elseif wrong or not sound(row) then
      quarantine(id, row, now, ARGV[2], wrong)
      verdicts[position] = 'quarantined'
    else
      restore(id, row)
      verdicts[position] = 'indexed'
    end
  end
end
settle()
return verdicts
