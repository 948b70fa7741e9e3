-- Lets the term of a lease last for so long from now, when it has not ended.
--
-- KEYS[1] leases
-- ARGV[1] name
-- ARGV[2] holder
-- ARGV[3] term
-- ARGV[4] ttl  microseconds
-- Replies: one of renewed, lost
-- Cost: O(1)

local leases = KEYS[1]

--@include clock
--@include leases

local name, now = ARGV[1], clock()
local lease = read_lease(name)
if not lease or not runs(lease, now) then
  return 'lost'
end
if lease[HOLDER] ~= ARGV[2] or lease[TERM] ~= tonumber(ARGV[3]) then
  return 'lost'
end
lease[EXPIRES_AT] = text(now + tonumber(ARGV[4]))
write_lease(name, lease)
return 'renewed'
