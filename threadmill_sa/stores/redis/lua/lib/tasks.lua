-- The fields of recurring tasks. Needs `tasks`, and `due` or `nudged` where one is written.
--
-- d:<name> definition   s:<name> schedule state   r:<name> revision of the pending nudge
-- g:<name> gate: 1 (enabled) or 0, a colon, and the epoch of the registration

-- Whether the task is still what was read of it; what is missing is read as empty.
local function unchanged(name, definition, gate, state)
  local is = redis.call('HMGET', tasks, 'd:' .. name, 'g:' .. name, 's:' .. name)
  return (is[1] or '') == definition and (is[2] or '') == gate and (is[3] or '') == state
end

local function look(name, look_at)
  if look_at == '' then
    redis.call('ZREM', due, name)
  else
    redis.call('ZADD', due, look_at, name)
  end
end

local function write_state(name, state, look_at)
  redis.call('HSET', tasks, 's:' .. name, state)
  look(name, look_at)
end

local function drop_nudge(name)
  redis.call('HDEL', tasks, 'r:' .. name)
  redis.call('ZREM', nudged, name)
end
