-- audit: examines subjects, each against everything that refers to it, and where told to mends what is wrong.
--
-- KEYS  the namespace
-- ARGV  now, '1' to mend, then subjects:
--         ticket <ticket> | holder <key> <member> | waiter <class> <key> <ticket> | line <key> | worker <worker>
--         | unacked <worker> | message <ticket> | listed <'outbox' or 'ready:<queue>'> <ticket> | stuck <ticket>
-- Outcome  audited; detail: findings { what, subject, explanation }
-- include base clock number record hold rate walk note decode line ring alarm floating move wake delivery recover pulse

tick()
local mend, findings = ARGV[2] == '1', {}

local function found(what, subject, why)
  findings[#findings + 1] = { what, subject, why }
  return mend
end

local function held(t, i)
  local o = at(t, i)
  local name, n = P .. 'hold:' .. t.links[o + KEY], call('SISMEMBER', P .. 'hold:' .. t.links[o + KEY], t.id)
  for w = 2, tonumber(t.links[o + WEIGHT]) do
    n = n + call('SISMEMBER', name, t.id .. '#' .. w)
  end
  return n
end

-- start_over(t): gives up what it has and walks again from the start, in its old place.
local function start_over(t)
  let_go(t)
  silence('grant', t.id)
  if t.kept ~= 'own' then return go_away(t, setting('forget')) end
  if t.queue ~= '' then call('LREM', P .. 'ready:' .. t.queue, 1, t.id) end
  call('ZREM', P .. 'outbox', t.id)
  local stop = survey(t)
  take(t, stop)
  if stop > t.n then grant(t) else park(t) end
end

local function in_list(t)
  if call('ZSCORE', P .. 'outbox', t.id) then return true end
  return t.queue ~= '' and call('LPOS', P .. 'ready:' .. t.queue, t.id)
end

local function slots(t)
  for i = 1, t.at - 1 do
    local o = at(t, i)
    if t.links[o] ~= 'r' and held(t, i) < tonumber(t.links[o + WEIGHT]) then
      if found('missing-slot', t.id, 'is ' .. t.state .. ' but lacks its slot of ' .. t.links[o + KEY]) then
        if t.state == 'running' then -- its body runs, so the slot is taken, whatever the set says
          hold('SADD', t.links[o + KEY], t.id, t.links[o + WEIGHT])
        else
          if t.state == 'waiting' then leave_line(t) end
          return start_over(t)
        end
      end
    end
  end
end

-- lost(t, why): there is nothing left to run; its slots are freed, its record set aside.
local function lost(t, why)
  if not found('lost-message', t.id, why) then return end
  if t.state == 'waiting' then leave_line(t) end
  let_go(t)
  silence('grant', t.id)
  silence('expire', t.id)
  call('ZREM', P .. 'outbox', t.id)
  set_aside(t.id, encode(t), why)
end

local check = {}

function check.ticket(id)
  local t, record = ticket(id)
  if not record then return end
  if not t then
    if found('unreadable-record', id, 'its record is not one of a ticket') then set_aside(id, record, 'unreadable record') end
    return
  end
  local state, stored = t.state, message(t)
  if t.kept ~= '' and not stored then
    if state == 'running' then
      if found('lost-message', id, 'its spare is gone') then
        t.kept = ''
        save(t)
      end
    else
      return lost(t, 'is ' .. state .. ' but its message is gone')
    end
  end
  if state == 'running' and not call('ZSCORE', P .. 'worker:' .. t.worker, id)
      and not call('ZSCORE', P .. 'dead:' .. t.worker, id) then
    if found('orphan', id, 'runs on ' .. t.worker .. ', which does not know it') then
      recover(t, 2 * setting('lease'))
      return
    end
  end
  if state == 'waiting' then
    local o = at(t, t.at)
    if t.at > t.n or not call('ZSCORE', line(class_of(t, o), t.links[o + KEY]), id) then
      if found('lost-waiter', id, 'waits, but stands in no line') then return start_over(t) end
      return
    end
  end
  if (state == 'granted' or state == 'away') and t.kept == 'own' and not in_list(t) then
    if found('lost-message', id, 'is ' .. state .. ', but its message is in no queue and no outbox') then return start_over(t) end
  end
  if state == 'ended' and not call('ZSCORE', P .. 'outbox', id) then
    if found('lost-end', id, 'has ended, but nobody will tell') then into_outbox(t) end
  end
  local remembered = state == 'finished' or (state == 'away' and t.kept == '')
  if remembered and not call('ZSCORE', P .. 'alarms', 'forget|' .. id) then
    if found('unforgotten', id, 'is ' .. state .. ' and would stay for ever') then
      alarm('forget', id, now + setting('forget'))
    end
  end
  if state == 'granted' and not call('ZSCORE', P .. 'alarms', 'grant|' .. id) then
    if found('unforgotten', id, 'is granted, and nothing would take it back') then alarm('grant', id, now + setting('grant')) end
  end
  slots(t)
end

function check.message(id)
  local task, nonce = string.match(id, '^(.+)%.([^.]+)$')
  if not task or call('HEXISTS', P .. 'task:' .. task, nonce) == 1 then return end
  if call('HEXISTS', P .. 'task:' .. task, nonce .. ':m') == 0 then return end
  if found('stray-message', id, 'its message is here, its record is gone') then set_aside(id, '', 'no record') end
end

function check.holder(key, member)
  local id, w = string.match(member, '^(.*)#(%d+)$')
  id = id or member
  local t = ticket(id)
  for i = 1, t and t.at - 1 or 0 do
    local o = at(t, i)
    if t.links[o] ~= 'r' and t.links[o + KEY] == key and tonumber(w or 1) <= tonumber(t.links[o + WEIGHT]) then return end
  end
  if call('SISMEMBER', P .. 'hold:' .. key, member) == 0 then return end
  if found('holder-without-ticket', key, member .. ' holds a slot that no ticket claims') then
    call('SREM', P .. 'hold:' .. key, member)
    freed[#freed + 1] = key
  end
end

function check.waiter(class, key, id)
  local t = ticket(id)
  if t and t.state == 'waiting' and t.at <= t.n then
    local o = at(t, t.at)
    if t.links[o + KEY] == key and class_of(t, o) == class then
      if call('HEXISTS', P .. 'note:' .. key, 'class:' .. class) == 0 then
        if found('hidden-line', key, 'has waiters that its note does not tell of') then join_line(t) end
      end
      return
    end
  end
  if not call('ZSCORE', line(class, key), id) then return end
  if found('waiter-without-ticket', key, id .. ' stands in line, but no ticket waits there') then strike(class, key, id) end
end

function check.line(key)
  local special = note(key)
  if not special or special.paused or call('ZSCORE', P .. 'alarms', 'wake|' .. key) then return end
  for _, head in ipairs(heads(key, special)) do
    local t = ticket(head.id)
    if t and t.state == 'waiting' and t.at <= t.n and key_at(t) == key then
      if special_room(t, t.at, at(t, t.at)) then
        if found('room-beside-waiter', key, head.id .. ' waits although there is room') then freed[#freed + 1] = key end
        return
      end
      if t.due and not call('ZSCORE', P .. 'alarms', 'rate|' .. key) then
        if found('unforgotten', key, 'a rate is waited for, and nothing would ring when it is due') then
          alarm('rate', key, t.due)
        end
      end
    end
  end
end

function check.worker(worker)
  local lapse = call('ZSCORE', P .. 'leases', worker)
  if lapse and tonumber(lapse) > now then return end
  if lapse then -- as for a sweep: after an outage everyone has a lease's time to come back, from whoever notices it first
    feel_pulse(setting('lease'), false)
    if in_grace() then return end
  end
  if not lapse and call('EXISTS', P .. 'worker:' .. worker) == 0 then return end
  if found('lapsed-lease', worker, lapse and 'its lease has lapsed' or 'has tickets but no lease') then
    declare_dead(worker)
  end
end

function check.unacked(worker)
  if call('EXISTS', P .. 'unacked:' .. worker) == 0 or call('ZSCORE', P .. 'alarms', 'bury|' .. worker) then return end
  if call('ZSCORE', P .. 'leases', worker) or call('EXISTS', P .. 'worker:' .. worker, P .. 'dead:' .. worker) > 0 then return end
  if found('lost-delivery', worker, 'has messages that it fetched, but no lease') then alarm('bury', worker, now) end
end

function check.listed(list, id)
  local t = ticket(id)
  if t and t.kept == 'own' then return end
  -- It may have been fetched since the list was read.
  if not call(list == 'outbox' and 'ZSCORE' or 'LPOS', P .. list, id) then return end
  if found('stray-entry', list, id .. ' is listed, but there is no such message') then
    if list == 'outbox' then call('ZREM', P .. list, id) else call('LREM', P .. list, 0, id) end
  end
end

function check.stuck(id)
  local t = ticket(id)
  if not t or t.state ~= 'waiting' then return end
  if found('deadlock', id, 'waits in a circle of tickets that wait for each other') then
    leave_line(t)
    start_over(t)
  end
end

local ARITY = { ticket = 1, message = 1, holder = 2, waiter = 3, line = 1, worker = 1, unacked = 1, listed = 2, stuck = 1 }
local i = 3
while i <= #ARGV do
  local kind = ARGV[i]
  local n = ARITY[kind]
  if not n then error('no such subject: ' .. kind) end
  check[kind](unpack(ARGV, i + 1, i + n))
  i = i + n + 1
end
return reply('audited', findings)
