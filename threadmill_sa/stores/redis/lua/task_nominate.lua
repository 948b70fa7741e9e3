-- Reads the names that are due or nudged, by their bytes. What it writes is gone at its end.
--
-- KEYS[1] due
-- KEYS[2] nudged
-- KEYS[3] scratch
-- ARGV[1] now    microseconds since 1970; empty: the server's clock
-- ARGV[2] after  only names after this one; empty: from the first
-- ARGV[3] limit  names at most
-- Replies: the names
-- Cost: O(D log D), D names due or nudged; an idle task costs nothing

local due, nudged, scratch = KEYS[1], KEYS[2], KEYS[3]

--@include clock

local now = text(moment(ARGV[1]))
if redis.call('ZCOUNT', due, '-inf', now) + redis.call('ZCARD', nudged) == 0 then
  return {}
end
-- Sorted by the server's zset: comparing in Lua follows the locale of the server.
redis.call('ZRANGESTORE', scratch, due, '-inf', now, 'BYSCORE')
redis.call('ZUNIONSTORE', scratch, 2, scratch, nudged, 'WEIGHTS', 0, 0)
local first = ARGV[2] == '' and '-' or '(' .. ARGV[2]
local names = redis.call('ZRANGEBYLEX', scratch, first, '+', 'LIMIT', 0, ARGV[3])
redis.call('DEL', scratch)
return names
