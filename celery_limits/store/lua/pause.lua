-- pause: nothing enters the key until it is resumed; what holds it runs on. Of a queue: nothing is fetched from it.
--
-- KEYS  the namespace
-- ARGV  now, 'key' or 'queue', its name, '1' to pause or '' to resume, for how long (microseconds) or '', the author as in include/changes.lua
-- Outcome  paused, resumed; more = 1: sweep goes on with it
-- include base clock number work record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede changes steer stop_queue

tick()
local is_key, name, on, author = ARGV[2] == 'key', ARGV[3], ARGV[4] == '1', read_author(6)
local till = tonumber(ARGV[5]) and now + tonumber(ARGV[5])
if was_recorded(author) then
  if is_key then freed[1] = name end
elseif is_key and on then
  pause_key(name, till, author)
elseif is_key then
  resume_key(name, author)
elseif on then
  stop_queue(name, till, author)
else
  start_queue(name, author)
end
return reply(on and 'paused' or 'resumed')
