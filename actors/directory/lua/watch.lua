-- Registers a gateway's interest in sessions for one TTL.
-- KEYS watch...
-- ARGV gateway ttl_ms
local ttl = tonumber(ARGV[2])
local now = server_now()
for _, watch in ipairs(KEYS) do
  redis.call('ZREMRANGEBYSCORE', watch, '-inf', now)
  redis.call('ZADD', watch, now + ttl, ARGV[1])
  redis.call('PEXPIRE', watch, ttl)
end
return 0
