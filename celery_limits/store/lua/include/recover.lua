-- needs delivery report
-- What becomes of a worker's tickets when it is gone.

-- comes_again(t): has the broker not been told to forget the message? Of one that was handed over, its delivery says so.
local function comes_again(t)
  return t.late == '1' or (string.find(t.delivery, '^g%d+%.[^/]*$') and has_delivery(t.worker, t.delivery))
end

-- recover(t, patience): t was with a worker that died or left. Where the store has the message it goes on from there, in its old
-- place; else the broker redelivers it, or had been told to forget it, which `patience` outlasts.
local function recover(t, patience)
  if t.kept == '' then return go_away(t, comes_again(t) and setting('forget') or patience) end
  free_slots(t)
  t.kept = 'own'
  if call('EXISTS', P .. 'cancelled:' .. t.task) == 1 then return finish(t, 'revoked') end
  if newest.successor(t) then return finish(t, t.reason) end
  if expiry.passed(t) then return finish(t, 'expired') end
  local stop = survey(t)
  take(t, stop)
  if stop > t.n then grant(t) else park(t) end
end

-- declare_dead(worker): it loses lease, report and set in one step, so that from here on nothing it does counts; its tickets follow.
local function declare_dead(worker)
  call('ZREM', P .. 'leases', worker)
  report(worker, nil)
  if call('EXISTS', P .. 'worker:' .. worker) == 0 then return end
  call('RENAME', P .. 'worker:' .. worker, P .. 'dead:' .. worker)
  alarm('reclaim', worker, now)
end

-- reclaim(worker): works off what a gone worker had, first come first, then what it had fetched, within the budget; true when nothing
-- is left.
local function reclaim(worker)
  local set = P .. 'dead:' .. worker
  while budget > 0 do
    local member = call('ZPOPMIN', set)[1]
    if not member then return requeue_all(worker) end
    spend(8)
    local key = string.match(member, '^refresh\t(.*)')
    if key then
      unclaim(key, worker)
    elseif member ~= '!' then
      local t, record = ticket(member)
      if t and t.worker == worker and t.state == 'running' then recover(t, 2 * setting('lease')) end
      if record and not t then set_aside(member, record, 'unreadable record') end
    end
  end
  return false
end
