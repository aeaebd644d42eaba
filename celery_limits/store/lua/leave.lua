-- leave: a worker goes. What it still has goes back at once, as much of it in a call as the budget allows.
--
-- KEYS  the namespace
-- ARGV  now, worker
-- Outcome  left; more = 1: call again
-- include base clock number work unacked record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede delivery report recover pulse

tick()
local worker = ARGV[2]
declare_dead(worker) -- so that, should it die before all is given back, any other goes on
if reclaim(worker) then
  silence('reclaim', worker)
else
  more = 1
end
still_pulse()
return reply('left')
