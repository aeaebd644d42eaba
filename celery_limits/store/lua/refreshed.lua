-- refreshed: what came of refreshing a floating limit.
--
-- KEYS  the namespace
-- ARGV  now, worker, key, token, the new size or '' for a failure
-- Outcomes
--   refreshed  size
--   failed     how often in a row; the old size stays, the next try comes after every, 2 every, 4 every ... at most an hour
--   stale      another refresh has taken this one's place
-- include base clock number work record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede

tick()
local LONGEST_WAIT = 3600e6
local worker, key, token, size = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local special = note(key)
if not special or special['f.token'] ~= token or special['f.claim'] ~= worker then return { 'stale', '' } end
local every, fails = tonumber(special['f.every']), tonumber(special['f.fails'] or 0)
call('ZREM', P .. 'worker:' .. worker, 'refresh\t' .. key)
write_note('HDEL', key, 'f.claim', 'f.token', 'f.lapse')
if size ~= '' then
  write_note('HSET', key, 'f.size', size, 'f.fresh', whole(now + every), 'f.fails', '0')
else
  fails = fails + 1
  write_note('HSET', key, 'f.fresh', whole(now + math.min(every * 2 ^ (fails - 1), LONGEST_WAIT)), 'f.fails', fails)
end
alarm('refresh', key, note(key)['f.fresh'])
freed[1] = key
if size ~= '' then return reply('refreshed', size) end
return reply('failed', fails)
