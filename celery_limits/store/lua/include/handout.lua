-- needs alarm payload
-- hand_out(t, text): the message leaves the store. From here on it is a worker's delivery, which the caller records; and unless it runs
-- at once, the ticket waits to be picked up.
local function hand_out(t, text)
  text = payload(t, text)
  call('HDEL', P .. 'task:' .. t.task, t.nonce .. ':m')
  t.kept, t.sends = '', math.max(t.sends, 1)
  save(t)
  if t.state == 'granted' then alarm('grant', t.id, now + setting('grant')) end
  if t.state == 'away' then expiry.forget(t, setting('forget')) end
  return text
end
