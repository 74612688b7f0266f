-- Answers the gateways with readers of a session.
-- KEYS watch
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. server_now(), '+inf')
