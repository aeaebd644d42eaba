-- settle: entries of the outbox are done with: published and confirmed, or their end was told.
--
-- KEYS  the namespace
-- ARGV  now, then ticket and fence of each, as claimed: an old claim settles nothing
-- Outcome  settled; detail: how many ends could not be reported before
-- include base clock number record decode alarm

tick()
local recovered = 0
for i = 2, #ARGV, 2 do
  local t = ticket(ARGV[i])
  local mine = t and t.fence == ARGV[i + 1] and t.state ~= 'running' and call('ZREM', P .. 'outbox', ARGV[i]) == 1
  if mine and t.state == 'ended' then
    forget(t)
    recovered = recovered + call('HDEL', P .. 'unreported', t.id)
  elseif mine and t.kept == 'own' then -- the broker has it now; whoever gets it picks up the grant
    call('HDEL', P .. 'task:' .. t.task, t.nonce .. ':m')
    t.kept = ''
    save(t)
    if t.state == 'granted' then alarm('grant', t.id, now + setting('grant')) end
    if t.state == 'away' then expiry.forget(t, setting('forget')) end
  end
end
return { 'settled', recovered }
