#!lua
-- The circuit breaker of one tool of a tenant, by this server's clock: the arithmetic of inference/tools/breaker.py.
--   KEYS[1]  HASH  n: failures in a row, u: until when no call is sent (ms)
-- ARGV permits failures_max pause_ms      1 if a call may be sent; after a pause it may be one
--      record failures_max pause_ms success (0 or 1)
local KEPT_MS = 3600000
local op, failures_max, pause_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if op == 'permits' then
  if tonumber(redis.call('HGET', KEYS[1], 'n') or '0') < failures_max then return 1 end
  if now < tonumber(redis.call('HGET', KEYS[1], 'u') or '0') then return 0 end
  redis.call('HSET', KEYS[1], 'u', now + pause_ms)
  redis.call('PEXPIRE', KEYS[1], KEPT_MS)
  return 1
end
if ARGV[4] == '1' then
  redis.call('DEL', KEYS[1])
  return 1
end
if redis.call('HINCRBY', KEYS[1], 'n', 1) >= failures_max then
  redis.call('HSET', KEYS[1], 'u', now + pause_ms)
end
redis.call('PEXPIRE', KEYS[1], KEPT_MS)
return 1
