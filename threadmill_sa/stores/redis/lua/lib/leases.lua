-- A lease by name. Needs `leases` and lib/clock. Packed are holder (false: free), term, and the
-- instants of the acquisition and of the end as text. A lease is never deleted, so no term comes
-- twice.

local HOLDER, TERM, ACQUIRED_AT, EXPIRES_AT = 1, 2, 3, 4

local function read_lease(name)
  local packed = redis.call('HGET', leases, name)
  return packed and cmsgpack.unpack(packed)
end

local function write_lease(name, lease)
  redis.call('HSET', leases, name, cmsgpack.pack(lease))
end

-- Whether the term has neither been given back nor run out.
local function runs(lease, now)
  return lease[HOLDER] and tonumber(lease[EXPIRES_AT]) > now
end
