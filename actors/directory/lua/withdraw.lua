-- Gives a lease back in some partitions, and with it every entry that was claimed under it.
-- KEYS (leases owners meta) for each partition
-- ARGV replica incarnation version
for i = 1, #KEYS / 3 do
  local leases, meta = KEYS[3 * i - 2], KEYS[3 * i]
  local record = stored(leases, ARGV[1])
  if record and record[1] == ARGV[2] then
    redis.call('HDEL', leases, ARGV[1])
    redis.call('HSET', meta, 'sweep', '0')
  end
  if tonumber(ARGV[3]) > number_of(meta, 'version') then redis.call('HSET', meta, 'version', ARGV[3]) end
end
return 0
