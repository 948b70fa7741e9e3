-- Reads every recurring task. Writes nothing.
--
-- KEYS[1] tasks
-- KEYS[2] nudged
-- Replies: two lists: all fields of the tasks with their values, and the nudged names with their
--   earliest request
-- Cost: O(N), N tasks

local tasks, nudged = KEYS[1], KEYS[2]

return { redis.call('HGETALL', tasks), redis.call('ZRANGE', nudged, 0, -1, 'WITHSCORES') }
