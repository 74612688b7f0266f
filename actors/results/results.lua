-- The sealed answers of one tenant, all in one slot. KEYS[1] is their common beginning.
--   :body   hash   name -> sealed answer
--   :mark   hash   name -> whose session it came from
--   :of     zset   mark and name, in the order of marks
--   :ends   zset   name -> when its time is over (ms)
--   :used   zset   name -> when it was used last (us)
--   :bytes  number of all bodies, with 256 for what stands beside each
-- ARGV[1] is the call; every call takes the server's clock.
local begin = KEYS[1]
local body, mark, of = begin .. ':body', begin .. ':mark', begin .. ':of'
local ends, used, bytes = begin .. ':ends', begin .. ':used', begin .. ':bytes'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local instant = time[1] * 1000000 + time[2]

local function remove(name)
  local size = redis.call('HSTRLEN', body, name)
  if size > 0 then
    redis.call('HDEL', body, name)
    redis.call('DECRBY', bytes, size + 256)
  end
  local whose = redis.call('HGET', mark, name)
  if whose then redis.call('ZREM', of, whose .. name) end
  redis.call('HDEL', mark, name)
  redis.call('ZREM', ends, name)
  redis.call('ZREM', used, name)
end

local call = ARGV[1]
if call == 'get' then
  local name = ARGV[2]
  local due = redis.call('ZSCORE', ends, name)
  if not due then return false end
  if tonumber(due) <= now then
    remove(name)
    return false
  end
  redis.call('ZADD', used, instant, name)
  return redis.call('HGET', body, name)
elseif call == 'put' then
  local name, whose, sealed, ttl_ms, bytes_max = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
  remove(name)
  local size = #sealed + 256
  if size > bytes_max then return 0 end
  for _, over in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 64)) do remove(over) end
  while tonumber(redis.call('GET', bytes) or '0') + size > bytes_max do
    local oldest = redis.call('ZRANGE', used, 0, 0)[1]
    if not oldest then
      redis.call('SET', bytes, 0)
      break
    end
    remove(oldest)
  end
  redis.call('HSET', body, name, sealed)
  redis.call('HSET', mark, name, whose)
  redis.call('ZADD', of, 0, whose .. name)
  redis.call('ZADD', ends, now + ttl_ms, name)
  redis.call('ZADD', used, instant, name)
  local held = redis.call('INCRBY', bytes, size)
  for _, key in ipairs({body, mark, of, ends, used, bytes}) do
    if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, ttl_ms) end
  end
  return held
elseif call == 'drop' then
  local whose = ARGV[2]
  if whose == '' then return redis.call('DEL', body, mark, of, ends, used, bytes) end
  local members = redis.call('ZRANGEBYLEX', of, '[' .. whose, '[' .. whose .. string.rep('\255', 32))
  for _, member in ipairs(members) do remove(string.sub(member, #whose + 1)) end
  return #members
end
return redis.error_reply('unknown call')
