-- Drops a session's entry if it names this owner; answers {version}.
-- KEYS owners meta
-- ARGV session replica incarnation activation
local entry = stored(KEYS[1], ARGV[1])
if entry and entry[1] == ARGV[2] and entry[2] == ARGV[3] and entry[3] == ARGV[4] then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return {number_of(KEYS[2], 'version')}
