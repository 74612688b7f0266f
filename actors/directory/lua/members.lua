-- Second part of the prelude for the scripts that touch the members: takes the lapsed out of the view, lifts its
-- version over everything that the caller has seen (it must only grow, also when this server was emptied), and
-- returns the version and the visible members by replica.
local function prune(members, meta, seen, grace, now)
  local version = number_of(meta, 'version')
  local shown, gone = {}, false
  local all = redis.call('HGETALL', members)
  for i = 1, #all, 2 do
    local replica, record = all[i], cjson.decode(all[i + 1])
    if alive(record, now) then
      if record[5] then shown[replica] = record[7] end
    else
      if record[5] then
        gone = true
        record[5] = false
        redis.call('HSET', members, replica, cjson.encode(record))
      end
      if math.abs(now - record[3]) >= record[4] * grace then redis.call('HDEL', members, replica) end
    end
  end
  if gone or seen > version then
    version = math.max(version, seen) + 1
    redis.call('HSET', meta, 'version', version)
  end
  return version, shown
end
