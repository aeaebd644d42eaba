-- What becomes of a worker's tickets when it is gone.

-- comes_again(t): has the broker not been told to forget the message? Of one that was handed over, its delivery says so.
local function comes_again(t)
  return t.late == '1' or call('HEXISTS', P .. 'unacked:' .. t.worker, t.delivery) == 1
end

-- recover(t, patience): t was with a worker that died or left. Where the store has the message it goes on from there, in its old
-- place; else the broker redelivers it, or had been told to forget it, which `patience` outlasts.
local function recover(t, patience)
  if t.kept == '' then return go_away(t, comes_again(t) and setting('forget') or patience) end
  let_go(t)
  t.kept = 'own'
  if call('EXISTS', P .. 'cancelled:' .. t.task) == 1 then return finish(t, 'revoked') end
  if t.expires ~= '' and tonumber(t.expires) <= now then return finish(t, 'expired') end
  local stop = survey(t)
  take(t, stop)
  if stop > t.n then grant(t) else park(t) end
end

-- declare_dead(worker): it loses lease and set in one step, so that from here on nothing it does counts; its tickets follow.
local function declare_dead(worker)
  call('ZREM', P .. 'leases', worker)
  if call('EXISTS', P .. 'worker:' .. worker) == 0 then return end
  call('RENAME', P .. 'worker:' .. worker, P .. 'dead:' .. worker)
  alarm('bury', worker, now)
end

-- bury(worker, set, batch): works off up to a batch of what a gone worker had, first come first, then what it had fetched; true
-- when nothing is left.
local function bury(worker, set, batch)
  local popped = call('ZPOPMIN', set, batch)
  for i = 1, #popped, 2 do
    local member = popped[i]
    local key = string.match(member, '^refresh\t(.*)')
    if key then
      unclaim(key, worker)
    elseif member ~= '!' then
      local t, record = ticket(member)
      if t and t.worker == worker and t.state == 'running' then recover(t, 2 * setting('lease')) end
      if record and not t then set_aside(member, record, 'unreadable record') end
    end
  end
  if call('EXISTS', set) == 1 then return false end
  return give_back_all(worker, batch)
end
