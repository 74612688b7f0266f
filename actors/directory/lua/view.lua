-- Answers {version, member...}.
-- KEYS members meta
-- ARGV seen_version grace_ttls
local version, shown = prune(KEYS[1], KEYS[2], tonumber(ARGV[1]), tonumber(ARGV[2]), server_now())
local answer = {version}
for _, each in pairs(shown) do answer[#answer + 1] = each end
return answer
