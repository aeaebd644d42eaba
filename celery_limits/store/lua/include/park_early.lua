-- needs seal wake
-- park_early(t, text, claimed): a message that no gate has seen yet joins the line at its first link, if that has no room; `claimed` is what
-- it says of its arrival. False when the gate should see it: there is room, the line is too long for it, its task is cancelled, the
-- ticket is known, or the workers do not trust headers, so that only they can tell its chain. No slot is taken.
local function park_early(t, text, claimed)
  local came = tonumber(sealed_arrival(t.id, claimed))
  t.arrival = came and came < NEWEST and came or NEWEST
  if call('HGET', P .. 'config', 'trust') == '0' then return false end
  if call('EXISTS', P .. 'cancelled:' .. t.task) == 1 or survey(t) > 1 or full(t, 1) or newest.late(t, 1) then return false end
  if call('HEXISTS', P .. 'task:' .. t.task, t.nonce) == 1 then return false end
  call('HSET', P .. 'task:' .. t.task, t.nonce .. ':m', text)
  if t.arrival == NEWEST then t.arrival = serial() end
  t.kept = 'own'
  newest.pass_due(t, 1)
  park(t)
  if newest.mark(t, t.base) or t.links[t.base] == 'd' then drain() end
  for _, key in ipairs(freed) do -- its share may have changed whose turn it is: for the next sweep
    alarm('wake', key, now)
  end
  freed = {}
  return true
end
