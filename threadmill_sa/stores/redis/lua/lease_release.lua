-- Ends the term of a lease and tells those who wait. The lease keeps its term.
--
-- KEYS[1] leases
-- ARGV[1] name
-- ARGV[2] holder
-- ARGV[3] term
-- ARGV[4] channel
-- ARGV[5] hint     what is published
-- Replies: one of released, not_held
-- Cost: O(N), N processes that listen

local leases = KEYS[1]

--@include clock
--@include leases

local name = ARGV[1]
local lease = read_lease(name)
if not lease or lease[HOLDER] ~= ARGV[2] or lease[TERM] ~= tonumber(ARGV[3]) then
  return 'not_held'
end
lease[HOLDER], lease[EXPIRES_AT] = false, text(clock())
write_lease(name, lease)
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 'released'
