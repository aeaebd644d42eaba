-- leave: a worker goes. What it still has goes back at once, a batch a call.
--
-- KEYS  the namespace
-- ARGV  now, worker, batch
-- Outcome  left; more = 1: call again
-- include base clock number record hold rate walk note decode line ring alarm floating move wake delivery recover pulse

tick()
local worker = ARGV[2]
declare_dead(worker) -- so that, should it die before all is given back, any other goes on
if bury(worker, P .. 'dead:' .. worker, tonumber(ARGV[3])) then
  silence('bury', worker)
else
  more = 1
end
still_pulse()
return reply('left')
