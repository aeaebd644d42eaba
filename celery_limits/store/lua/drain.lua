-- drain: messages that the store keeps go back into their queue as ordinary ones, so that it can be left. What is limited goes between the
-- messages that lie in the list, by arrival; what is delayed goes to the list's end.
--
-- KEYS  the namespace
-- ARGV  now, the list, '' for messages of another broker, which go through the outbox; '1' if no other tickets follow for this list; tickets, in
--       the order in which they are to run
-- Outcome  drained; detail: how many of the tickets were gone through, how many of those are in the list now, and 1 when the list is complete
--
-- The front part of the list is laid aside in drained:<list> until each ticket has its place there, and then goes back. If the caller
-- dies meanwhile, the next drain begins by putting it back: a call without tickets.
-- include base clock number work record hold rate walk serving note decode place newest fair followers line ring alarm floating move wake supersede find_header payload seal arrival
-- include delay

tick()
local list, last = ARGV[2], ARGV[3] == '1'
local beside = P .. 'drained:' .. list
local seen, moved = 0, 0

-- put_back(): true when nothing is beside the list any more. The last that was laid aside comes first.
local function put_back()
  while budget > 0 do
    if not call('LMOVE', beside, list, 'LEFT', 'RIGHT') then return true end
    spend(1)
  end
  return call('EXISTS', beside) == 0
end

-- arrival_at_front(): the arrival of the first message in the list; nil if it has none, and false if there is no message.
local function arrival_at_front()
  local text = call('LINDEX', list, -1)
  if not text then return false end
  spend(1 + #text / 1024)
  local header, _, at = find_header(text)
  return header and tonumber(string.match(claim_in(header, at), '^%d+')) or nil
end

-- lay_aside(t): those before which t must not come; true when its place is reached, or the list is at its end.
local function lay_aside(t)
  while budget > 0 do
    local came = arrival_at_front()
    if came == false or (came and came > t.arrival) then return true end
    call('LMOVE', list, beside, 'RIGHT', 'LEFT')
    spend(1)
  end
  return false
end

-- withdraw(t): it waits nowhere and holds nothing any more. Nobody is woken: those who wait are drained, too.
local function withdraw(t)
  if t.state == 'waiting' then
    leave_line(t)
    silence('expire', t.id)
  elseif t.state == 'delayed' then
    leave_later(t)
  end
  if t.queue ~= '' then call('ZREM', P .. 'ready:' .. t.queue, t.id) end
  silence('grant', t.id)
  silence('forget', t.id)
  free_slots(t)
  t.fence = 0
end

local KEPT = { waiting = true, granted = true, away = true, delayed = true }

-- into_list(t): false when its place is not reached yet.
local function into_list(t)
  local later = t.state == 'delayed'
  if not later and not lay_aside(t) then return false end
  local text = message(t)
  withdraw(t)
  call('LPUSH', later and list or beside, payload(t, text))
  forget(t)
  ring_for(t.queue)
  return true
end

-- to_broker(t): the outbox publishes it, and the store remembers no place for it.
local function to_broker(t)
  withdraw(t)
  t.state, t.worker, t.since = 'away', '', whole(now)
  save(t)
  into_outbox(t)
  return true
end

while budget > 0 and ARGV[4 + seen] do
  local t = ticket(ARGV[4 + seen])
  spend(10)
  if t and KEPT[t.state] and t.kept == 'own' and (t.queue == '') == (list == '') and message(t) then
    if not (list == '' and to_broker or into_list)(t) then break end
    moved = moved + 1
  end
  seen = seen + 1
end
for _, key in ipairs(freed) do -- should the drain end here, those who still wait are woken by the next sweep
  alarm('wake', key, now)
end
freed = {}
local complete = list == '' or (last and not ARGV[4 + seen] and put_back())
ring_bell()
return { 'drained', { seen, moved, complete and 1 or 0 } }
