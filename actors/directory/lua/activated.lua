-- Notifies a session's watchers, each on its own channel in the session's slot; answers how many there were.
-- KEYS watch
-- ARGV channel_prefix message
local gateways = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. server_now(), '+inf')
for _, gateway in ipairs(gateways) do
  redis.call('SPUBLISH', ARGV[1] .. gateway, ARGV[2])
end
return #gateways
