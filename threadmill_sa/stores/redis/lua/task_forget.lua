-- Takes names of no recurring task out of what ticks look at, with their nudges.
--
-- KEYS[1] tasks
-- KEYS[2] due
-- KEYS[3] nudged
-- ARGV[1] names  packed list of {name, whether it is no text, so that no task can have it}
-- Replies: the names that were there and are gone
-- Cost: O(N log M), N names, M due or nudged

local tasks, due, nudged = KEYS[1], KEYS[2], KEYS[3]

--@include tasks

-- A key that holds something else ends the script here, before it has written anything.
redis.call('HLEN', tasks)
redis.call('ZCARD', nudged)
local forgotten = {}
for _, named in ipairs(cmsgpack.unpack(ARGV[1])) do
  local name = named[1]
  if named[2] or unchanged(name, '', '', '') then
    local there = redis.call('ZSCORE', nudged, name)
    if redis.call('ZREM', due, name) == 1 or there then
      forgotten[#forgotten + 1] = name
    end
    drop_nudge(name)
  end
end
return forgotten
