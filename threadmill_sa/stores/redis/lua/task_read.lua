-- Reads recurring tasks with all that one tick needs to know. Writes nothing.
--
-- KEYS[1] tasks
-- KEYS[2] counters
-- KEYS[3] nudged
-- ARGV[1] now    microseconds since 1970; empty: the server's clock
-- ARGV[2] names  packed list
-- Replies: now; then definition, gate, state, revision, earliest request and number of
--   unfinished jobs of each name, flat, nil where absent
-- Cost: O(N), N names

local tasks, counters, nudged = KEYS[1], KEYS[2], KEYS[3]

--@include clock

local found = { text(moment(ARGV[1])) }
for _, name in ipairs(cmsgpack.unpack(ARGV[2])) do
  local fields = redis.call('HMGET', tasks, 'd:' .. name, 'g:' .. name, 's:' .. name, 'r:' .. name)
  for position = 1, 4 do
    found[#found + 1] = fields[position]
  end
  found[#found + 1] = redis.call('ZSCORE', nudged, name)
  found[#found + 1] = redis.call('HGET', counters, 't:' .. name)
end
return found
