#!lua
-- One decision about what a tenant and one of its users take: the arithmetic of sessions/limits.py, by this server's clock.
-- Runs whole or not at all. All keys begin with KEYS[1], whose hash tag is the tenant's, so they share one slot:
--   ..s:SCOPE  HASH  rc rl ra, tc tl ta: ceiling, level, looked at (ms) of the buckets of requests and tokens
--   ..o:SCOPE  ZSET  response -> until when it may be under way
--   ..r:NAME   HASH  tokens, scope (the user's), state open|done
--   ..h:NAME   STRING  tokens that a session held at the end of its last turn
-- ARGV reserve name session user hold_ms input output, then per scope (tenant, user): requests, tokens, turns (-1: no limit)
--      settle name session tokens          an empty session is none
--      release name requests
local MINUTE, REMEMBERED, BUSY = 60000, 3600000, 1000
local prefix = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local op, name = ARGV[1], ARGV[2]
local reservation = prefix .. 'r:' .. name

local function bucket(raw, letter, ceiling)
  local old, level, at = tonumber(raw[letter .. 'c']), tonumber(raw[letter .. 'l']), tonumber(raw[letter .. 'a'])
  if not old then
    return {c = ceiling, l = ceiling}
  end
  level = math.min(level + math.max(0, now - at) * old / MINUTE, old) + ceiling - old
  return {c = ceiling, l = level}
end

local function wait(b, wanted)
  local short = math.min(wanted, b.c) - b.l
  if short <= 1e-6 then
    return 0
  end
  return math.max(1, math.ceil(short * MINUTE / b.c))
end

local function load(scope)
  local raw, flat = {}, redis.call('HGETALL', prefix .. 's:' .. scope)
  for i = 1, #flat, 2 do
    raw[flat[i]] = flat[i + 1]
  end
  return raw
end

local function store(scope, buckets)
  local words, longest = {}, 0
  for letter, b in pairs(buckets) do
    for field, value in pairs({c = b.c, l = b.l, a = now}) do
      words[#words + 1] = letter .. field
      words[#words + 1] = string.format('%.6f', value)
    end
    longest = math.max(longest, (b.c - b.l) * MINUTE / b.c)
  end
  if #words > 0 then
    redis.call('HSET', prefix .. 's:' .. scope, unpack(words))
    -- A bucket that is full again says as much by not being there.
    redis.call('PEXPIRE', prefix .. 's:' .. scope, math.ceil(longest) + MINUTE)
  end
end

local function give_back(scope, requests, tokens)
  local raw, buckets = load(scope), {}
  for letter, amount in pairs({r = requests, t = tokens}) do
    local ceiling = tonumber(raw[letter .. 'c'])
    if ceiling then
      local b = bucket(raw, letter, ceiling)
      b.l = math.min(b.l + amount, ceiling)
      buckets[letter] = b
    end
  end
  store(scope, buckets)
  redis.call('ZREM', prefix .. 'o:' .. scope, name)
end

if op == 'settle' or op == 'release' then
  local tokens = 0
  if op == 'settle' then
    tokens = tonumber(ARGV[4])
    if ARGV[3] ~= '' then
      redis.call('SET', prefix .. 'h:' .. ARGV[3], ARGV[4], 'PX', REMEMBERED)
    end
  end
  local held = redis.call('HMGET', reservation, 'state', 'tokens', 'scope')
  if held[1] ~= 'open' then
    return 0
  end
  local requests = op == 'release' and tonumber(ARGV[3]) or 0
  for _, scope in ipairs({'', held[3]}) do
    give_back(scope, requests, tonumber(held[2]) - tokens)
  end
  if op == 'settle' then
    redis.call('HSET', reservation, 'state', 'done')
    redis.call('PEXPIRE', reservation, REMEMBERED)
  else
    redis.call('DEL', reservation)
  end
  return 1
end

local session, user, hold = ARGV[3], ARGV[4], tonumber(ARGV[5])
local tokens = (tonumber(redis.call('GET', prefix .. 'h:' .. session)) or 0) + tonumber(ARGV[6]) + tonumber(ARGV[7])
local scopes, worst, what, whose, limit = {}, 0, 0, 0, 0

local function refuse(ms, kind, scope, ceiling)
  if ms > worst then
    worst, what, whose, limit = ms, kind, scope, ceiling
  end
end

for i = 1, 2 do
  local scope = i == 1 and '' or user
  local first = 5 + 3 * i
  local rpm, tpm, turns = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  local raw, buckets = load(scope), {}
  if rpm > 0 then
    buckets.r = bucket(raw, 'r', rpm)
    refuse(wait(buckets.r, 1), 1, i, rpm)
  end
  if tpm > 0 then
    buckets.t = bucket(raw, 't', tpm)
    refuse(wait(buckets.t, tokens), 2, i, tpm)
  end
  redis.call('ZREMRANGEBYSCORE', prefix .. 'o:' .. scope, '-inf', now)
  if turns > 0 and redis.call('ZCARD', prefix .. 'o:' .. scope) >= turns then
    refuse(BUSY, 3, i, turns)
  end
  scopes[i] = {name = scope, buckets = buckets}
end

local again = redis.call('EXISTS', reservation) == 1
if again or worst == 0 then
  for _, scope in ipairs(scopes) do
    if not again then
      if scope.buckets.r then
        scope.buckets.r.l = scope.buckets.r.l - 1
      end
      if scope.buckets.t then
        scope.buckets.t.l = scope.buckets.t.l - tokens
      end
      redis.call('ZADD', prefix .. 'o:' .. scope.name, now + hold, name)
      -- One that may take longer is not forgotten with one that may not.
      if redis.call('PTTL', prefix .. 'o:' .. scope.name) < hold then
        redis.call('PEXPIRE', prefix .. 'o:' .. scope.name, hold)
      end
    end
    store(scope.name, scope.buckets)
  end
  if not again then
    redis.call('HSET', reservation, 'state', 'open', 'tokens', tokens, 'scope', user)
    redis.call('PEXPIRE', reservation, hold)
  end
  worst, what, whose, limit = 0, 0, 0, 0
end

local answer = {worst, what, whose, limit}
for _, scope in ipairs(scopes) do
  for _, letter in ipairs({'r', 't'}) do
    local b = scope.buckets[letter]
    if b then
      answer[#answer + 1] = b.c
      answer[#answer + 1] = math.max(0, math.floor(b.l + 1e-6))
      answer[#answer + 1] = math.max(0, math.ceil((b.c - b.l) * MINUTE / b.c))
    else
      for _ = 1, 3 do
        answer[#answer + 1] = -1
      end
    end
  end
end
answer[#answer + 1] = again and 1 or 0
return answer
