-- Reads all that was recorded, with the gates of the tasks in it. Writes nothing.
--
-- KEYS[1] tasks
-- KEYS[2] nudge_records
-- KEYS[3] snapshots
-- Replies: three lists: revisions with their packed nudges, packed snapshots from the oldest, and
--   names with their gate, nil for unknown tasks
-- Cost: O(N), N records

local tasks, nudge_records, snapshots = KEYS[1], KEYS[2], KEYS[3]

local recorded = redis.call('HGETALL', nudge_records)
local gates, seen = {}, {}
for position = 2, #recorded, 2 do
  local name = cmsgpack.unpack(recorded[position])[1]
  if not seen[name] then
    seen[name] = true
    gates[#gates + 1] = name
    gates[#gates + 1] = redis.call('HGET', tasks, 'g:' .. name)
  end
end
return { recorded, redis.call('LRANGE', snapshots, 0, -1), gates }
