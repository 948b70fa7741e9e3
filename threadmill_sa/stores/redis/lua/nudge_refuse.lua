-- Marks one recorded promise as refused: it gets an epoch that no registration has.
--
-- KEYS[1] nudge_records
-- ARGV[1] name
-- ARGV[2] promise
-- ARGV[3] epoch  of what was refused
-- Replies: one of refused, absent
-- Cost: O(1)

local nudge_records = KEYS[1]

local packed = redis.call('HGET', nudge_records, ARGV[2])
local record = packed and cmsgpack.unpack(packed)
if not record or record[1] ~= ARGV[1] or not record[4] then
  return 'absent'
end
record[2] = ARGV[3]
redis.call('HSET', nudge_records, ARGV[2], cmsgpack.pack(record))
return 'refused'
