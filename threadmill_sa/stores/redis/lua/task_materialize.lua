-- Writes the decisions of one tick: creates jobs, advances states and consumes nudges, all or
-- none.
--
-- KEYS[1] tasks
-- KEYS[2] due
-- KEYS[3] nudged
-- KEYS[4] rows
-- KEYS[5] payloads
-- KEYS[6] index
-- KEYS[7] counters
-- KEYS[8] delayed
-- ARGV[1] now        microseconds since 1970; empty: the server's clock
-- ARGV[2] decisions  packed list of {name, definition, gate, state, unfinished or "any",
--   new state or false, look at, nudge, records}: what was read, and what to write
-- Replies: {written}; {changed, name, ...} for tasks that are not as they were read, {taken, id}
--   for an id that exists: nothing is written then
-- Cost: O(N log M), N decisions and jobs, M members of the index

local tasks, due, nudged = KEYS[1], KEYS[2], KEYS[3]
local rows, payloads, index, counters, delayed = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]

--@include clock
--@include rows
--@include index
--@include births
--@include tasks

local now = moment(ARGV[1])
local decisions = cmsgpack.unpack(ARGV[2])
local changed, records = { 'changed' }, {}

-- A decision consumes a nudge, or has seen none; a newer one than it saw is served as well, since
-- the job is created now. One that came where there was none may change the decision.
local function stands(decision)
  local name, guard, nudge = decision[1], decision[5], decision[8]
  if not unchanged(name, decision[2], decision[3], decision[4]) then
    return false
  end
  local held = redis.call('HEXISTS', counters, 't:' .. name) == 1
  -- Either half of a nudge is one: a hand may have taken the other.
  local pending = redis.call('HEXISTS', tasks, 'r:' .. name) == 1
    or redis.call('ZSCORE', nudged, name) ~= false
  return (guard == 'any' or guard == held) and (nudge == 'keep' or (nudge == 'consume') == pending)
end

for _, decision in ipairs(decisions) do
  if not stands(decision) then
    changed[#changed + 1] = decision[1]
  end
  for _, record in ipairs(decision[9]) do
    records[#records + 1] = record
  end
end
if #changed > 1 then
  return changed
end
local id = taken(records)
if id then
  return { 'taken', id }
end
-- A key that holds something else ends the script here, before it has written anything.
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
redis.call('ZCARD', index)
redis.call('ZCARD', delayed)
for _, record in ipairs(records) do
  bear(record, now)
end
deliver()
for _, decision in ipairs(decisions) do
  if decision[6] then
    write_state(decision[1], decision[6], decision[7])
  end
  if decision[8] == 'consume' then
    drop_nudge(decision[1])
  end
end
settle()
return { 'written' }
