-- audit: examines subjects, each against everything that refers to it, and where told to mends what is wrong.
--
-- KEYS  the namespace
-- ARGV  now, '1' to mend, then subjects:
--         ticket <ticket> | holder <key> <ticket> | weights <key> <sum or ''> | waiter <class> <key> <ticket> | line <key> | worker <worker>
--         | group <key> <group> <held or ''> | fair <key> <sum or ''> | member <class> <key> <group> <ticket> | turn <class> <key> <member>
--         | newest <key, or key TAB group> <ticket> | runs <key, or key TAB group> <ticket> | order <worker> <ticket>
--         | begun <key> <ticket> | unacked <worker> | message <ticket> | listed <'outbox', 'later' or 'ready:<queue>'> <entry> | stuck <ticket>
--         | queue <queue> | places | drained <list>
-- Outcome  audited; detail: how many subjects were examined, the first ones, as many as the budget allows; then findings
--          { what, subject, explanation }
-- include base clock number work unacked record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede delivery report recover pulse knot delay

tick()
local mend, findings = ARGV[2] == '1', {}

local function found(what, subject, why)
  findings[#findings + 1] = { what, subject, why }
  return mend
end

-- start_over(t): gives up what it has and walks again from the start, in its old place.
local function start_over(t)
  free_slots(t)
  silence('grant', t.id)
  if t.kept ~= 'own' then return go_away(t, setting('forget')) end
  if t.queue ~= '' then call('ZREM', P .. 'ready:' .. t.queue, t.id) end
  call('ZREM', P .. 'outbox', t.id)
  local stop = survey(t)
  take(t, stop)
  if stop > t.n then grant(t) else park(t) end
end

local function in_list(t)
  if call('ZSCORE', P .. 'outbox', t.id) then return true end
  return t.queue ~= '' and call('ZSCORE', P .. 'ready:' .. t.queue, t.id)
end

local function slots(t)
  for i = 1, t.at - 1 do
    local o = at(t, i)
    local key, weight = t.links[o + KEY], t.links[o + WEIGHT]
    if HOLDS[t.links[o]] and tonumber(call('HGET', P .. 'hold:' .. key, t.id) or 0) < tonumber(weight) then
      if found('missing-slot', t.id, 'is ' .. t.state .. ' but lacks its slot of ' .. key) then
        if t.state == 'running' then -- its body runs, so the slot is taken, whatever the set says
          fair.give_back(t, o, free_slot(key, t.id, '')) -- of another weight, if it has one
          served(t, o, take_slot(key, t.id, weight))
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
  if t.state == 'delayed' then leave_later(t) end
  free_slots(t)
  silence('grant', t.id)
  silence('expire', t.id)
  call('ZREM', P .. 'outbox', t.id)
  call('HDEL', P .. 'unreported', t.id)
  set_aside(t.id, encode(t), why)
end

local check, victims = {}, {}

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
    if t.at > t.n or not standing(class_of(t, o), t.links[o + KEY], id) then
      if found('lost-waiter', id, 'waits, but stands in no line') then return start_over(t) end
      return
    end
    local size, key = t.links[o + SIZE], t.links[o + KEY]
    if t.links[o] == 'w' and not followers.has(size, key) then
      if found('hidden-line', key, 'does not follow the workers for which ' .. id .. ' waits') then followers.join(size, key) end
    end
    if newest.mark(t, o) and t.reached == t.at and not call('ZSCORE', newest.waiting(newest.key(t, o)), id) then
      if found('lost-waiter', id, 'waits, but no newcomer would supersede it') then
        call('ZADD', newest.waiting(newest.key(t, o)), whole(t.arrival), id)
      end
    end
  end
  if state == 'running' and newest.successor(t) and not call('ZSCORE', P .. 'orders:' .. t.worker, id) then
    if found('unforgotten', id, 'is superseded, and nobody would end it') then call('ZADD', P .. 'orders:' .. t.worker, whole(now), id) end
  end
  if (state == 'granted' or state == 'away') and t.kept == 'own' and not in_list(t) then
    if found('lost-message', id, 'is ' .. state .. ', but its message is in no queue and no outbox') then return start_over(t) end
  end
  if state == 'delayed' and not call('ZSCORE', LATER, later_member(t)) then
    if not due_of(t) then return lost(t, 'is delayed, but does not say until when') end
    if found('lost-delay', id, 'is delayed, but nothing would put it into its queue') then list_later(t) end
  end
  if state == 'ended' and not call('ZSCORE', P .. 'outbox', id) then
    if found('lost-end', id, 'has ended, but nobody will tell') then into_outbox(t) end
  end
  local remembered = state == 'finished' or (state == 'away' and t.kept == '')
  if remembered and not call('ZSCORE', P .. 'alarms', 'forget|' .. id) then
    if found('unforgotten', id, 'is ' .. state .. ' and would stay for ever') then
      expiry.forget(t, setting('forget'))
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

function check.holder(key, id)
  local t, claimed, from = ticket(id), '0', nil
  for i = 1, t and t.at - 1 or 0 do
    local o = at(t, i)
    if HOLDS[t.links[o]] and t.links[o + KEY] == key then claimed, from = t.links[o + WEIGHT], o end
  end
  local held = tonumber(call('HGET', P .. 'hold:' .. key, id) or 0)
  if held <= tonumber(claimed) then return end
  if found('holder-without-ticket', key, id .. ' holds ' .. whole(held) .. ', and its ticket claims ' .. claimed) then
    local amount = free_slot(key, id, '') -- of one that claims nothing, what its group holds is counted anew
    if from then
      fair.give_back(t, from, amount)
      served(t, from, take_slot(key, id, claimed))
    end
    freed[#freed + 1] = key
  end
end

-- More holders than this are not summed up in one script; audit.py does it, page by page, and asks only where two sums in a row differ.
local MOST_SUMMED = 2000

-- check.weights(key, seen): what heavier holders use beyond a slot each is what the note says. `seen` is that sum as audit.py has counted
-- it, '' where it is to be counted here.
function check.weights(key, seen)
  local extra, noted = tonumber(seen), tonumber(call('HGET', P .. 'note:' .. key, 'extra') or 0)
  if not extra and call('HLEN', P .. 'hold:' .. key) > MOST_SUMMED then return end
  if not extra then
    extra = 0
    for _, weight in ipairs(call('HVALS', P .. 'hold:' .. key)) do
      extra = extra + (tonumber(weight) or 1) - 1
    end
    spend(call('HLEN', P .. 'hold:' .. key) / 10)
  end
  if extra == noted then return end
  local said = 'holders use ' .. whole(extra) .. ' beyond a slot each, but ' .. (noted or 'something else') .. ' is counted'
  if found('wrong-sum', key, said) then
    call('HDEL', P .. 'note:' .. key, 'extra')
    if extra > 0 then call('HSET', P .. 'note:' .. key, 'extra', whole(extra)) end
    freed[#freed + 1] = key
  end
end

function check.waiter(class, key, id)
  local t = ticket(id)
  if t and t.state == 'waiting' and t.at <= t.n then
    local o = at(t, t.at)
    if t.links[o + KEY] == key and (class_of(t, o) == class or class == mixed(class_of(t, o))) then
      local group = group_of(t, o)
      if begun.says(t, o) and call('SISMEMBER', P .. 'begun:' .. key, id) == 0 then
        if found('hidden-line', key, id .. ' has begun before, and is counted as a newcomer') then begun.join(t, o) end
      end
      local hidden = group and (not call('ZSCORE', fair.line(class, key, group), id)
        or call('HEXISTS', P .. 'groups:' .. key, group) == 0)
      if hidden or call('HEXISTS', P .. 'note:' .. key, 'class:' .. class) == 0 then
        if found('hidden-line', key, 'has waiters that its note does not tell of') then
          if group then call('ZREM', fair.line(class, key, group), id) end
          join_line(t)
        end
      end
      return
    end
  end
  if not call('ZSCORE', line(class, key), id) then return end
  if found('waiter-without-ticket', key, id .. ' stands in line, but no ticket waits there') then strike(class, key, id) end
end

-- check.member(class, key, group, id): as for a waiter, in the line of its group.
function check.member(class, key, group, id)
  local t = ticket(id)
  if t and t.state == 'waiting' and t.at <= t.n and key_at(t) == key and group_of(t, at(t, t.at)) == group
      and call('ZSCORE', line(class, key), id) then
    return
  end
  if not call('ZSCORE', fair.line(class, key, group), id) then return end
  if found('waiter-without-ticket', key, id .. ' stands in the line of ' .. group .. ', but does not wait there') then
    strike(class, key, id, group)
  end
end

-- held_by(key, group): what a group, or with nil all of them together, holds by the records of the holders; nil where there are too many.
local MOST_GROUPED = 500
local function held_by(key, group)
  if call('HLEN', P .. 'hold:' .. key) > MOST_GROUPED then return nil end
  local sum, flat = 0, call('HGETALL', P .. 'hold:' .. key)
  spend(#flat)
  for i = 1, #flat, 2 do
    local t = ticket(flat[i])
    for n = 1, t and t.at - 1 or 0 do
      local o = at(t, n)
      local own = group_of(t, o)
      if t.links[o + KEY] == key and own and own == (group or own) then sum = sum + flat[i + 1] end
    end
  end
  return sum
end

-- check.fair(key, seen): the sum of what groups hold. `seen`: as counted by audit.py, where there are too many holders for one script.
function check.fair(key, seen)
  local special = note(key)
  local f = fair.state(special)
  if not f and call('EXISTS', P .. 'groups:' .. key) == 0 then
    if call('EXISTS', P .. 'idle:' .. key) == 1 and found('stray-group', key, 'remembers groups that were here') then fair.forget(key) end
    return
  end
  local sum = f and f.kind == 'r' and f.sum or held_by(key) or tonumber(seen)
  if not sum or (f and f.sum == sum) then return end
  if found('wrong-sum', key, 'groups hold ' .. whole(sum) .. ', but ' .. whole(f and f.sum or 0) .. ' is counted') then
    local rate = false
    for _, class in ipairs(classes(special)) do
      rate = rate or string.find(class, '^g?r') ~= nil
    end
    write_note('HSET', key, 'fair', string.format('%s %.17g %.17g', rate and 'r' or 'c', rate and 0 or sum, f and f.mark or 0))
    freed[#freed + 1] = key
  end
end

-- check.group(key, group, seen): what one group holds, how many of it wait, and its place in turns. `seen` as above.
function check.group(key, group, seen)
  local special = note(key)
  local f = fair.state(special)
  if not f or call('HEXISTS', P .. 'groups:' .. key, group) == 0 then return end
  local g, n, wrong = fair.read(key, group), 0, nil
  local held = f.kind == 'r' and 0 or held_by(key, group) or tonumber(seen) or g.held
  for _, class in ipairs(classes(special)) do
    if is_fair(class) then n = n + call('ZCARD', fair.line(class, key, group)) end
  end
  if held ~= g.held then wrong = 'holds ' .. whole(held) .. ', but ' .. whole(g.held) .. ' is counted' end
  if n ~= g.waiting then wrong = 'has ' .. n .. ' who wait, but ' .. whole(g.waiting) .. ' are counted' end
  for _, class in ipairs(classes(special)) do
    local noted = is_fair(class) and call('HGET', P .. 'groups:' .. key, class .. '\t' .. group)
    local due = is_fair(class) and fair.member(key, f, class, group, g)
    if due ~= noted or (due and not call('ZSCORE', fair.turns(class, key), due)) then wrong = wrong or 'is not where its turn is' end
  end
  if not wrong or not found('wrong-group', key, group .. ' ' .. wrong) then return end
  g.held, g.waiting = held, n
  for _, class in ipairs(classes(special)) do
    call('HDEL', P .. 'groups:' .. key, class .. '\t' .. group) -- a member that is not as it should be is a stray one
    if is_fair(class) then fair.place(key, f, class, group, g) end
  end
  fair.write(key, f, group, g)
  freed[#freed + 1] = key
end

function check.turn(class, key, member)
  local group = string.match(member, '^%d+|[%d.]+|%d+|%d+|(.*)$')
  if group and call('HGET', P .. 'groups:' .. key, class .. '\t' .. group) == member then return end
  if not call('ZSCORE', fair.turns(class, key), member) then return end
  if found('stray-turn', key, member .. ' is in turn, but there is no such group') then
    call('ZREM', fair.turns(class, key), member)
    as_read[key] = nil
    freed[#freed + 1] = key
  end
end

function check.begun(key, id)
  local t = ticket(id)
  if t and t.state == 'waiting' and t.at <= t.n and key_at(t) == key and begun.says(t, at(t, t.at)) then return end
  if call('SISMEMBER', P .. 'begun:' .. key, id) == 0 then return end
  if found('stray-entry', key, id .. ' counts as a waiter that has begun, but does not wait there') then begun.leave(key, id) end
end

-- What is set for a time must end.
local function check_times(key, special)
  for what, bell in pairs({ paused = 'resume', size = 'reset' }) do
    local till = special and tonumber(special[what .. '.until'])
    if till and not call('ZSCORE', P .. 'alarms', bell .. '|' .. key) then
      if found('unforgotten', key, 'is ' .. (what == 'size' and 'resized' or what) .. ' for a time, and nothing would end it') then alarm(bell, key, till) end
    end
  end
end

function check.queue(queue)
  local text = call('HGET', P .. 'stopped', queue)
  local till = text and tonumber(string.match(text, '"until":"(%d+)"'))
  if not till or call('ZSCORE', P .. 'alarms', 'queue|' .. queue) then return end
  if found('unforgotten', 'queue ' .. queue, 'is paused for a time, and nothing would end it') then alarm('queue', queue, till) end
end

-- check.newest(name, id): may be superseded where it waits.
function check.newest(name, id)
  local t = ticket(id)
  if t and t.state == 'waiting' and t.at <= t.n and newest.mark(t, at(t, t.at)) and newest.key(t, at(t, t.at)) == name then return end
  if not call('ZSCORE', newest.waiting(name), id) then return end
  if found('stray-entry', name, id .. ' could be superseded, but does not wait there') then call('ZREM', newest.waiting(name), id) end
end

-- check.runs(name, id): may be preempted while it holds.
function check.runs(name, id)
  local t = ticket(id)
  for i = 1, t and t.at - 1 or 0 do
    if newest.mark(t, at(t, i)) == '!' and newest.key(t, at(t, i)) == name then return end
  end
  if not call('ZSCORE', newest.runs(name), id) then return end
  if found('stray-entry', name, id .. ' could be preempted, but does not hold it') then call('ZREM', newest.runs(name), id) end
end

function check.order(worker, id)
  local t = ticket(id)
  if t and t.state == 'running' and t.worker == worker and newest.successor(t) then return end
  if not call('ZSCORE', P .. 'orders:' .. worker, id) then return end
  if found('stray-entry', worker, id .. ' is to be ended there, but does not run') then call('ZREM', P .. 'orders:' .. worker, id) end
end

function check.line(key)
  local special = note(key)
  check_times(key, special)
  if not special or special.paused or call('ZSCORE', P .. 'alarms', 'wake|' .. key) then return end
  for _, head in ipairs(heads(key, special)) do
    local t = ticket(head.id)
    if t and t.state == 'waiting' and t.at <= t.n and key_at(t) == key then
      if special_room(t, t.at, at(t, t.at)) then
        if found('room-beside-waiter', key, head.id .. ' waits although there is room') then freed[#freed + 1] = key end
        return
      end
      local what = t.links[at(t, t.at)] == 'd' and 'debounce' or 'rate'
      if t.due and not call('ZSCORE', P .. 'alarms', what .. '|' .. key) then
        if found('unforgotten', key, 'a ' .. what .. ' is waited for, and nothing would ring when it is due') then
          alarm(what, key, t.due)
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

-- check.places(): what workers report is of live workers, and the sums are of what they report. One that does not report is no finding.
function check.places()
  local flat, entries, sums, strays = call('HGETALL', P .. 'places'), {}, {}, {}
  spend(#flat / 10)
  for i = 1, #flat, 2 do
    local worker = string.match(flat[i], '^w:(.*)')
    if not worker then
      sums[flat[i]] = flat[i + 1]
    elseif call('ZSCORE', P .. 'leases', worker) then
      entries[worker] = flat[i + 1]
    else
      strays[#strays + 1] = worker
    end
  end
  local due = serving.sums(entries)
  local wrong = strays[1] and strays[1] .. ' has places, but no lease'
  for field, sum in pairs(due) do
    if sums[field] ~= sum then wrong = wrong or field .. ' is ' .. sum .. ', but ' .. (sums[field] or 'nothing') .. ' is counted' end
  end
  for field in pairs(sums) do
    if not due[field] then wrong = wrong or field .. ' is counted, and no worker says so' end
  end
  if wrong and found('wrong-places', 'places', wrong) then
    serving.rewrite(entries, due)
    for field in pairs(due) do
      local queue = string.match(field, '^q:(.*)')
      if queue then alarm('places', queue, now) end
    end
  end
end

function check.unacked(worker)
  if call('EXISTS', P .. 'unacked:' .. worker) == 0 or call('ZSCORE', P .. 'alarms', 'reclaim|' .. worker) then return end
  if call('ZSCORE', P .. 'leases', worker) or call('EXISTS', P .. 'worker:' .. worker, P .. 'dead:' .. worker) > 0 then return end
  if found('lost-delivery', worker, 'has messages that it fetched, but no lease') then alarm('reclaim', worker, now) end
end

function check.listed(list, id)
  local t = ticket(list == 'later' and string.sub(id, 18) or id)
  if t and t.kept == 'own' and (list ~= 'later' or (t.state == 'delayed' and later_member(t) == id)) then return end
  -- It may have been fetched since the list was read.
  if not call('ZSCORE', P .. list, id) then return end
  if found('stray-entry', list, id .. ' is listed, but there is no such message') then call('ZREM', P .. list, id) end
end

-- A drain was interrupted: what it laid aside goes back to the front of its list.
function check.drained(list)
  if call('EXISTS', P .. 'drained:' .. list) == 0 then return end
  if found('unfinished-drain', list, 'messages are laid aside since a drain was interrupted; run limits drain again') then
    while budget > 0 and call('LMOVE', P .. 'drained:' .. list, list, 'LEFT', 'RIGHT') do
      spend(1)
    end
  end
end

function check.stuck(id)
  local t = ticket(id)
  if not t or t.state ~= 'waiting' then return end
  if found('deadlock', id, 'waits in a circle of tickets that wait for each other') then victims[#victims + 1] = t end
end

local ARITY = { ticket = 1, message = 1, holder = 2, weights = 2, waiter = 3, line = 1, worker = 1, unacked = 1, listed = 2, stuck = 1, drained = 1, places = 0,
  group = 3, fair = 2, member = 4, turn = 3, newest = 2, runs = 2, order = 2, begun = 2, queue = 1 }
local i, examined = 3, 0
while i <= #ARGV and budget > 0 do
  local kind = ARGV[i]
  local n = ARITY[kind]
  if not n then error('no such subject: ' .. kind) end
  check[kind](unpack(ARGV, i + 1, i + n))
  spend(10)
  i, examined = i + n + 1, examined + 1
end
knot.restart(victims)
return reply('audited', { examined, findings })
