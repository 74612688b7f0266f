-- Second part of the prelude for the scripts that touch the members: takes the lapsed out of the view, lifts its
-- version over everything that the caller has seen (it must only grow, also when this server was emptied), and
-- returns the version, the visible members by replica, and those that have lapsed and are not forgotten yet.
local function prune(members, meta, seen, grace, now)
  local version = number_of(meta, 'version')
  local shown, vanished, gone = {}, {}, false
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
      if math.abs(now - record[3]) >= record[4] * grace then
        redis.call('HDEL', members, replica)
      else
        vanished[replica] = record[7]
      end
    end
  end
  if gone or seen > version then
    version = math.max(version, seen) + 1
    redis.call('HSET', meta, 'version', version)
  end
  return version, shown, vanished
end
