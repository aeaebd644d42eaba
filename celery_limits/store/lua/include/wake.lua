-- needs move
-- with supersede
-- Waking: what every script does last. drain() walks on each waiter for which there may be room, in turn, within the budget of the
-- script; what is left is rung again at once, for the next sweep.
local more = 0

local wake

-- newest.pass_due(t, i) is in supersede.lua: those whose time has come at the debounce i pass before t opens it anew. True if any were there.

-- noted(t, i): the record remembers how long t stood in the line at link i, for whoever measures; not without end.
local function noted(t, i)
  if #t.waits < 300 then t.waits = t.waits .. i .. ':' .. whole(math.max(0, now - (tonumber(t.since) or now))) .. ' ' end
end

-- step(t): walks t on from where it waits. False when it is where it was.
local function step(t)
  local from, stop = t.at, survey(t)
  if stop == from then return false end
  noted(t, from)
  leave_line(t)
  take(t, stop)
  spend(2 * (stop - from))
  if stop <= t.n then newest.pass_due(t, stop) end
  if stop <= t.n and full(t, stop) then -- what was freed there goes to those who wait first; then there may be room
    wake(key_at(t))
    stop = survey(t)
    take(t, stop)
  end
  local by = newest.late(t, stop)
  if by then
    newest.trail(t, by)
    finish(t, 'superseded ' .. by)
  elseif stop > t.n then
    grant(t)
  elseif full(t, stop) then
    finish(t, 'discarded')
  else
    park(t)
  end
  return true
end

-- The pace of a line, for estimates: a moving average of the time between two that went on from it.
local function pace(key, special)
  local last, mean = tonumber(special.paced), tonumber(special.pace)
  if last then mean = mean and mean * 0.8 + (now - last) * 0.2 or now - last end
  local left = note(key)
  if not waited(left) then return end
  left.paced, left.pace = whole(now), mean and whole(mean) or '' -- nothing else of it changes: it need not be read again
  call('HSET', P .. 'note:' .. key, 'paced', left.paced, 'pace', left.pace)
end

-- move_on(key, head): true when the head of a line has left it, on its way or for good.
local function move_on(key, head, special)
  local t, record = ticket(head.id)
  if not t or t.state ~= 'waiting' or key_at(t) ~= key then
    strike(head.class, key, head.id, head.group)
    call('ZREM', newest.waiting(head.group and key .. '\t' .. head.group or key), head.id)
    if record and not t then set_aside(head.id, record, 'unreadable record') end
    return true
  end
  local group = group_of(t, at(t, t.at))
  if order(t) ~= head.order or group ~= head.group then -- its record says another place than the line: the record counts
    strike(head.class, key, t.id, head.group or group)
    join_line(t)
    return true
  end
  if expiry.passed(t) then
    leave_line(t)
    finish(t, 'expired')
    return true
  end
  if not step(t) then
    if t.due and kind_at(t) == 'r' then alarm('rate', key, math.max(t.due, now + 1)) end
    if t.due and kind_at(t) == 'd' then alarm('debounce', key, t.due) end
    return false
  end
  pace(key, special)
  return true
end

-- done_with(key, from): it need not be woken for what was freed since. When wake(key) ends, nobody who waits there can go on.
local function done_with(key, from)
  local kept = from
  for i = from + 1, #freed do
    local other = freed[i]
    freed[i] = nil
    if other ~= key then
      kept = kept + 1
      freed[kept] = other
    end
  end
end

-- may_fit(key, head, special): is there room for anyone of this class? If not, not even the first of it need be read. Of a rate, or a
-- class that can't be read, the ticket itself says.
local function may_fit(key, head, special)
  local kind, size = string.match(head.class, '^g?([cfw]):([^:]+)$')
  return not kind or used(key) < sized(kind, size, special)
end

do
-- doubt(key, special): something was given back, and nobody could go on: those who hold the rest may wait for the first in line.
local function doubt(key, special)
  local head = heads(key, special)[1]
  local t = head and ticket(head.id)
  if t and t.state == 'waiting' and t.at > 1 and key_at(t) == key and may_be_stuck(t) then alarm('knot', key, now) end
end

wake = function(key)
  local moved, from, first = true, #freed, true
  while moved do
    local special = note(key)
    if not special or special.paused then break end
    if budget <= 0 then
      alarm('wake', key, now)
      more = 1
      break
    end
    moved = false
    for _, head in ipairs(heads(key, special)) do
      if may_fit(key, head, special) and move_on(key, head, special) then
        moved = true
        spend(10)
        break
      end
    end
    if first and not moved then doubt(key, special) end
    first = false
  end
  done_with(key, from)
  local special = note(key)
  if special and not special.paused and (special.preempt or newest.touched[key]) then newest.preempt(key, special) end
end
end

-- One damaged key must not keep the waiters of another from being woken: what is wrong with it is set aside for the audit.
local function drain()
  local i = 1
  while freed[i] do
    local fine, why = pcall(wake, freed[i])
    if not fine then call('HSET', P .. 'aside', 'key ' .. freed[i], type(why) == 'table' and why.err or why) end
    i = i + 1
  end
  freed = {}
end

-- reply(outcome, detail, refreshes): what a script returns that may have woken others: whether more is left to do, how many
-- outbox entries it made, and when the next alarm is due.
local function reply(outcome, detail, refreshes)
  drain()
  push_fronted()
  ring_bell()
  return { outcome, detail or '', more, outboxed, next_alarm(), refreshes or {}, whole(now) }
end
