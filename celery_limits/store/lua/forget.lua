-- forget: tickets whose messages the broker has free what they hold, and lose their places in line. For a drain, while no worker runs.
--
-- KEYS  the namespace
-- ARGV  now, tickets
-- Outcome  forgotten
-- include base clock number work record hold rate walk serving note decode place newest fair followers line ring alarm floating move wake supersede

tick()
local LOST = { granted = true, away = true, finished = true }
for i = 2, #ARGV do
  local t = ticket(ARGV[i])
  if t and LOST[t.state] and t.kept == '' then
    free_slots(t)
    silence('grant', t.id)
    silence('forget', t.id)
    forget(t)
  end
end
return reply('forgotten')
