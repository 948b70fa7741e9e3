-- Puts a recurring task back to where ticks look for it, if it is still as it was read: a hand may
-- have taken it out. A pending nudge that is not looked for is requested anew.
--
-- KEYS[1] tasks
-- KEYS[2] due
-- KEYS[3] nudged
-- ARGV[1] name
-- ARGV[2] was_definition
-- ARGV[3] was_gate
-- ARGV[4] was_state
-- ARGV[5] look_at  microseconds since 1970; empty: never
-- ARGV[6] now      microseconds since 1970; empty: the server's clock
-- Replies: one of sound, mended, changed
-- Cost: O(log N), N tasks with a next run

local tasks, due, nudged = KEYS[1], KEYS[2], KEYS[3]

--@include clock
--@include tasks

local name, look_at = ARGV[1], ARGV[5]
if not unchanged(name, ARGV[2], ARGV[3], ARGV[4]) then
  return 'changed'
end
local looked_at = redis.call('ZSCORE', due, name)
local pending = redis.call('HEXISTS', tasks, 'r:' .. name) == 1
local missed = pending and not redis.call('ZSCORE', nudged, name)
if missed then
  redis.call('ZADD', nudged, text(moment(ARGV[6])), name)
end
if tonumber(looked_at or '') ~= tonumber(look_at) then
  look(name, look_at)
  return 'mended'
end
return missed and 'mended' or 'sound'
