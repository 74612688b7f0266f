-- Takes a member out of the view; answers {version}.
-- KEYS members meta
-- ARGV replica incarnation
local record = stored(KEYS[1], ARGV[1])
local version = number_of(KEYS[2], 'version')
if record and record[1] == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  version = version + 1
  redis.call('HSET', KEYS[2], 'version', version)
end
return {version}
