-- pause: nothing enters the key until it is resumed; what holds it runs on.
--
-- KEYS  the namespace
-- ARGV  now, key, '1' to pause or '' to resume
-- Outcome  paused, resumed; more = 1: sweep goes on with it
-- include base clock number record hold rate walk note decode line ring alarm floating move wake

tick()
local key = ARGV[2]
if ARGV[3] == '1' then
  write_note('HSET', key, 'paused', whole(now))
  return { 'paused', '' }
end
write_note('HDEL', key, 'paused')
freed[1] = key
return reply('resumed')
