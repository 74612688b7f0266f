-- Answers {version} or {version, replica, incarnation, activation}.
-- KEYS leases owners meta
-- ARGV session
local version = number_of(KEYS[3], 'version')
local entry = stored(KEYS[2], ARGV[1])
if entry and counts(KEYS[1], entry, server_now()) then
  return {version, entry[1], entry[2], entry[3]}
end
return {version}
