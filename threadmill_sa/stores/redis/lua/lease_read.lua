-- Reads one lease, or all that were ever held. Writes nothing.
--
-- KEYS[1] leases
-- ARGV[1] name  empty: all
-- Replies: now, then name and lease of each, flat
-- Cost: O(N), N leases

local leases = KEYS[1]

--@include clock

local name = ARGV[1]
local found = {}
if name == '' then
  found = redis.call('HGETALL', leases)
else
  local packed = redis.call('HGET', leases, name)
  if packed then
    found = { name, packed }
  end
end
table.insert(found, 1, text(clock()))
return found
