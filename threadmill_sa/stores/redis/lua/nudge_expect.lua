-- Records that nudges of these tasks are about to be written, for those that are enabled.
--
-- KEYS[1] tasks
-- KEYS[2] sequences
-- KEYS[3] nudge_records
-- ARGV[1] now    microseconds since 1970; empty: the server's clock
-- ARGV[2] names  packed list
-- Replies: name and promise of each that left a record, flat
-- Cost: O(N), N names

local tasks, sequences, nudge_records = KEYS[1], KEYS[2], KEYS[3]

--@include clock
--@include records

-- A key that holds something else ends the script here, before it has written anything.
redis.call('HLEN', tasks)
redis.call('HLEN', nudge_records)
local now = moment(ARGV[1])
local promises = {}
for _, name in ipairs(cmsgpack.unpack(ARGV[2])) do
  local gate = redis.call('HGET', tasks, 'g:' .. name)
  if gate and string.sub(gate, 1, 1) == '1' then
    local promise = redis.call('HINCRBY', sequences, 'revision', 1)
    record_nudge(promise, name, gate, now, true)
    promises[#promises + 1] = name
    promises[#promises + 1] = promise
  end
end
return promises
