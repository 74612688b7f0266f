-- Compare-and-swap of a session's owner; answers {1, version} when it is won, {0, version, replica, incarnation,
-- activation} when that one has it, {-1, version} when the claimant has no living lease.
-- KEYS leases owners meta
-- ARGV session replica incarnation activation, then perhaps the owner whose place is taken: replica incarnation activation
local leases, owners, meta = KEYS[1], KEYS[2], KEYS[3]
local session = ARGV[1]
local now = server_now()
local version = number_of(meta, 'version')

local function is(entry, first)
  return entry[1] == ARGV[first] and entry[2] == ARGV[first + 1] and entry[3] == ARGV[first + 2]
end

local entry = stored(owners, session)
if entry and not is(entry, 2) and not is(entry, 5) and counts(leases, entry, now) then
  return {0, version, entry[1], entry[2], entry[3]}
end
local lease = stored(leases, ARGV[2])
if not alive(lease, now) or lease[1] ~= ARGV[3] then
  return {-1, version}
end
redis.call('HSET', owners, session, cjson.encode({ARGV[2], ARGV[3], ARGV[4], lease[2]}))
return {1, version}
