-- resize: sets, or with '' takes back, the size of a key for every ticket, whatever it declares. Grants in batches.
--
-- KEYS  the namespace
-- ARGV  now, key, 'size' (slots) or 'rate' ("<interval> <burst>"), value
-- Outcome  resized; more = 1: sweep goes on with it
-- include base clock number record hold rate walk note decode line ring alarm floating move wake

tick()
local key, field, value = ARGV[2], ARGV[3], ARGV[4]
if value == '' then
  write_note('HDEL', key, 'size', 'rate')
else
  write_note('HSET', key, field, value)
end
freed[1] = key
return reply('resized')
