-- Joins or renews a member; answers {"ok", version, generation, {member...}, {vanished member...}}, the latter to who
-- joins only, or {"replaced", version}.
-- KEYS members meta
-- ARGV replica incarnation generation(0: never joined) ttl_ms seen_version grace_ttls stable member
local members, meta = KEYS[1], KEYS[2]
local replica, incarnation = ARGV[1], ARGV[2]
local generation, ttl, seen, grace = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local stable, member = ARGV[7], ARGV[8]
local now = server_now()

local joins = generation == 0
local version, shown, vanished = prune(members, meta, seen, grace, now)
local record = stored(members, replica)
local same = record and record[1] == incarnation
if record and not same and generation > 0 and generation <= record[2] then
  return {'replaced', version}
end
local changed = true
if same and (generation == 0 or generation == record[2]) then
  generation = record[2]
  changed = not record[5] or record[6] ~= stable
end
if changed then
  version = version + 1
  if generation == 0 then generation = version end
end
redis.call('HSET', members, replica, cjson.encode({incarnation, generation, now, ttl, true, stable, member}))
redis.call('HSET', meta, 'version', version)
shown[replica], vanished[replica] = member, nil
local view, absent = {}, {}
for _, each in pairs(shown) do view[#view + 1] = each end
if joins then
  for _, each in pairs(vanished) do absent[#absent + 1] = each end
end
return {'ok', version, generation, view, absent}
