-- Renews a lease in some partitions; answers one number for each:
--   bit 1: it was not alive there before; bit 2: entries of the dead are still there, tidy again soon;
--   bit 4: another process has joined as this replica since, nothing was written.
-- KEYS (leases owners meta) for each partition
-- ARGV replica incarnation generation ttl_ms version grace_ttls, then one for each partition: 1 to tidy it now
local replica, incarnation = ARGV[1], ARGV[2]
local generation, ttl, version, grace = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local ENTRIES_PER_TIDY = 256
local now = server_now()
local lease = cjson.encode({incarnation, generation, now, ttl})

-- Forgets leases that lapsed long ago and takes a bounded step through the entries, dropping those that no lease
-- can make count again. Restarts when another lease is forgotten on the way.
local function tidy(leases, owners, meta)
  local all = redis.call('HGETALL', leases)
  for i = 1, #all, 2 do
    local record = cjson.decode(all[i + 1])
    if math.abs(now - record[3]) >= record[4] * grace then
      redis.call('HDEL', leases, all[i])
      redis.call('HSET', meta, 'sweep', '0')
    end
  end
  local cursor = redis.call('HGET', meta, 'sweep')
  if not cursor then return end
  local found = redis.call('HSCAN', owners, cursor, 'COUNT', ENTRIES_PER_TIDY)
  local entries = found[2]
  for i = 1, #entries, 2 do
    local entry = cjson.decode(entries[i + 1])
    local holder = stored(leases, entry[1])
    if not holder or holder[1] ~= entry[2] or holder[2] ~= entry[4] then
      redis.call('HDEL', owners, entries[i])
    end
  end
  if found[1] == '0' then
    redis.call('HDEL', meta, 'sweep')
  else
    redis.call('HSET', meta, 'sweep', found[1])
  end
end

local answer = {}
for i = 1, #KEYS / 3 do
  local leases, owners, meta = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local record = stored(leases, replica)
  local mine = record and record[1] == incarnation and record[2] == generation
  if record and not mine and record[2] > generation then
    answer[i] = 4
  else
    local flags = 0
    if not mine or not alive(record, now) then flags = 1 end
    if record and not mine then redis.call('HSET', meta, 'sweep', '0') end
    redis.call('HSET', leases, replica, lease)
    if version > number_of(meta, 'version') then redis.call('HSET', meta, 'version', version) end
    if ARGV[6 + i] == '1' then tidy(leases, owners, meta) end
    if redis.call('HEXISTS', meta, 'sweep') == 1 then flags = flags + 2 end
    answer[i] = flags
  end
end
return answer
