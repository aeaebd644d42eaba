-- resize: sets, or with '' takes back, the size of a key for every ticket, whatever it declares. Grants in batches.
--
-- KEYS  the namespace
-- ARGV  now, key, 'size' (slots) or 'rate' ("<interval> <burst>"), value, for how long (microseconds) or '', the author as in include/changes.lua
-- Outcome  resized; more = 1: sweep goes on with it
-- include base clock number work record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede changes steer

tick()
local key, field, value, author = ARGV[2], ARGV[3], ARGV[4], read_author(6)
if was_recorded(author) then
  freed[1] = key
elseif value == '' then
  reset_key(key, author)
else
  resize_key(key, field, value, tonumber(ARGV[5]) and now + tonumber(ARGV[5]), author)
end
return reply('resized')
