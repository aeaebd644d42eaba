-- stand(t, text): a message that has not come to the gate yet joins the line at its first link, if that has no room. False when the
-- gate should see it: there is room, the line is too long for it, its task is cancelled, or the ticket is known. No slot is taken.
local function stand(t, text)
  local came = arrival_in(text)
  t.arrival = came > 0 and came < NEWEST and came or NEWEST
  if call('EXISTS', P .. 'cancelled:' .. t.task) == 1 or survey(t) > 1 or full(t, 1) then return false end
  if call('HEXISTS', P .. 'task:' .. t.task, t.nonce) == 1 then return false end
  call('HSET', P .. 'task:' .. t.task, t.nonce .. ':m', text)
  if t.arrival == NEWEST then t.arrival = serial() end
  t.kept = 'own'
  park(t)
  return true
end
