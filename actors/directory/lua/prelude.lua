-- Put in front of every script. The rules are those of rules.py; this is where they run on a server.
--
-- Stored, as JSON arrays:
--   members  HASH replica -> [incarnation, generation, renewed at, ttl, visible, stable, member]
--   leases   HASH replica -> [incarnation, generation, renewed at, ttl]              one per partition
--   owners   HASH session -> [replica, incarnation, activation, generation]          one per partition
--   meta     HASH version, sweep: the newest view known in this slot; where tidying goes on
--   watch    ZSET gateway -> until                                                   one per session with readers
-- All times are milliseconds of this server's clock.

local function server_now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function stored(key, field)
  local raw = redis.call('HGET', key, field)
  return raw and cjson.decode(raw)
end

local function number_of(key, field)
  return tonumber(redis.call('HGET', key, field)) or 0
end

-- A lease is alive within its TTL in both directions: after a failover to a server whose clock is behind, a lease
-- "from the future" must not live on for as long as the clocks are apart.
local function alive(lease, now)
  return lease and math.abs(now - lease[3]) < lease[4]
end

local function counts(leases, entry, now)
  local lease = stored(leases, entry[1])
  return alive(lease, now) and lease[1] == entry[2] and lease[2] == entry[4]
end
