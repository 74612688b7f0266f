-- The sealed answers of one tenant, all in one slot. KEYS[1] is their common beginning.
--   :body   hash   name -> mark of its session (16 bytes), sealed answer
--   :of     zset   mark and name, in the order of marks
--   :ends   zset   name -> when its time is over (ms)
--   :used   zset   name -> when it was used last (us)
--   :bytes  number of all sealed answers, with 256 for what stands beside each
-- ARGV: the call, and a name (get, put) or a mark (drop). Every call takes the server's clock.
local begin, call, name = KEYS[1], ARGV[1], ARGV[2]
local body, of, ends, used, bytes = begin .. ':body', begin .. ':of', begin .. ':ends', begin .. ':used', begin .. ':bytes'
local time = redis.call('TIME')
local now, instant = time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]

local function remove(name)
  local entry = redis.call('HGET', body, name)
  if entry then
    redis.call('HDEL', body, name)
    redis.call('DECRBY', bytes, #entry - 16 + 256)
    redis.call('ZREM', of, string.sub(entry, 1, 16) .. name)
  end
  redis.call('ZREM', ends, name)
  redis.call('ZREM', used, name)
end

if call == 'get' then
  local due = redis.call('ZSCORE', ends, name)
  if due and tonumber(due) > now then
    redis.call('ZADD', used, instant, name)
    local entry = redis.call('HGET', body, name)
    return entry and string.sub(entry, 17)
  end
  if due then remove(name) end
  return false
elseif call == 'put' then
  local mark, sealed, ttl_ms, bytes_max = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
  remove(name)
  local size = #sealed + 256
  if size > bytes_max then return 0 end
  for _, over in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 64)) do remove(over) end
  local oldest = redis.call('ZRANGE', used, 0, 0)[1]
  while oldest and tonumber(redis.call('GET', bytes) or '0') + size > bytes_max do
    remove(oldest)
    oldest = redis.call('ZRANGE', used, 0, 0)[1]
  end
  if not oldest then redis.call('SET', bytes, 0) end
  redis.call('HSET', body, name, mark .. sealed)
  redis.call('ZADD', of, 0, mark .. name)
  redis.call('ZADD', ends, now + ttl_ms, name)
  redis.call('ZADD', used, instant, name)
  redis.call('INCRBY', bytes, size)
  for _, key in ipairs({body, of, ends, used, bytes}) do
    if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, ttl_ms) end
  end
  return size
end
if name == '' then return redis.call('DEL', body, of, ends, used, bytes) end
for _, member in ipairs(redis.call('ZRANGEBYLEX', of, '[' .. name, '[' .. name .. string.rep('\255', 32))) do
  remove(string.sub(member, 17))
end
return 0
