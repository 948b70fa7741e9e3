-- Clears the pending nudge of a recurring task if its revision is one of those observed.
--
-- KEYS[1] tasks
-- KEYS[2] nudged
-- ARGV[1] name
-- ARGV[2] observed  packed list of revisions, as text
-- Replies: one of cleared, absent
-- Cost: O(N), N revisions observed

local tasks, nudged = KEYS[1], KEYS[2]

--@include tasks

local name = ARGV[1]
local pending = redis.call('HGET', tasks, 'r:' .. name)
for _, revision in ipairs(cmsgpack.unpack(ARGV[2])) do
  if revision == pending then
    drop_nudge(name)
    return 'cleared'
  end
end
return 'absent'
