-- Begins a new term of a lease when nobody holds it. Who finds it held writes nothing.
--
-- KEYS[1] leases
-- ARGV[1] name
-- ARGV[2] holder
-- ARGV[3] ttl  microseconds
-- Replies: acquired or held, then holder, term and the microseconds that remain
-- Cost: O(1)

local leases = KEYS[1]

--@include clock
--@include leases

local name, holder, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = clock()
local lease = read_lease(name)
if lease and runs(lease, now) then
  return { 'held', lease[HOLDER], lease[TERM], text(tonumber(lease[EXPIRES_AT]) - now) }
end
local term = lease and lease[TERM] + 1 or 1
write_lease(name, { holder, term, text(now), text(now + ttl) })
return { 'acquired', holder, term, text(ttl) }
