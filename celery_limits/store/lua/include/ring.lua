-- needs base
-- ring_for(queue): there is something to fetch. Who waits for work sleeps on the list call:<queue>, which has one entry at most.
local function ring_for(queue)
  local list = P .. 'call:' .. queue
  if call('EXISTS', list) == 1 then return end
  call('RPUSH', list, '1')
  call('PEXPIRE', list, 10000) -- nobody may ever come for it; whoever comes later looks before it sleeps
end
