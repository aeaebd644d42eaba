-- Waking: what every script does last. drain() walks on each waiter for which there may be room, in turn, within a budget;
-- what is left is rung again at once by whoever sweeps next.
local budget, more = 64, 0

local wake

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
  if stop <= t.n and full(t, stop) then -- what was freed there goes to those who wait first; then there may be room
    wake(key_at(t))
    stop = survey(t)
    take(t, stop)
  end
  if stop > t.n then
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
    strike(head.class, key, head.id)
    if record and not t then set_aside(head.id, record, 'unreadable record') end
    return true
  end
  if order(t) ~= head.order then -- its record says another place than the line: the record counts
    strike(head.class, key, t.id)
    join_line(t)
    return true
  end
  if t.expires ~= '' and tonumber(t.expires) <= now then
    leave_line(t)
    finish(t, 'expired')
    return true
  end
  if not step(t) then
    if t.due and kind_at(t) == 'r' then alarm('rate', key, math.max(t.due, now + 1)) end
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
  local kind, size = string.match(head.class, '^([cf]):(%d+)$')
  return not kind or used(key) < sized(kind, size, special)
end

wake = function(key)
  local moved, from = true, #freed
  while moved do
    local special = note(key)
    if not special or special.paused then break end
    if budget == 0 then
      alarm('wake', key, now)
      more = 1
      break
    end
    moved = false
    for _, head in ipairs(heads(key, special)) do
      if may_fit(key, head, special) and move_on(key, head, special) then
        moved, budget = true, budget - 1
        break
      end
    end
  end
  done_with(key, from)
end

-- One damaged key must not keep the waiters of another from being woken: what is wrong with it is set aside for the audit.
local function drain()
  local i = 1
  while freed[i] do
    local fine, why = pcall(wake, freed[i])
    if not fine then call('HSET', P .. 'aside', 'key ' .. freed[i], type(why) == 'table' and why.err or why) end
    i = i + 1
  end
end

-- reply(outcome, detail, refreshes): what a script returns that may have woken others: whether more is left to do, how many
-- outbox entries it made, and when the next alarm is due.
local function reply(outcome, detail, refreshes)
  drain()
  push_fronted()
  ring_bell()
  return { outcome, detail or '', more, outboxed, next_alarm(), refreshes or {}, whole(now) }
end
