-- needs floating line ring stopped
-- How a ticket moves between its states. Each function leaves record, line, alarms and lists agreeing with one another;
-- keys that may have room afterwards are put on `freed`.
local outboxed, fronted = 0, {}

-- free_slots(t): gives back every slot t holds, and remembers how far it had come.
local function free_slots(t)
  for i = 1, t.at - 1 do
    local o = at(t, i)
    if HOLDS[t.links[o]] then
      newest.gone(t, o)
      fair.give_back(t, o, free_slot(t.links[o + KEY], t.id, t.links[o + WEIGHT]))
      freed[#freed + 1] = t.links[o + KEY]
    end
  end
  spend(2 * t.at)
  t.at = 1
end

-- The outbox is worked off in the order of its times; entries of one script are kept apart by a microsecond each.
local function into_outbox(t)
  call('ZADD', P .. 'outbox', whole(now + outboxed), t.id)
  outboxed = outboxed + 1
end

-- ready:<queue> is the front part of a queue: granted tickets, the one with the lowest score first.
local function to_back(t)
  local list = P .. 'ready:' .. t.queue
  local last = call('ZREVRANGE', list, 0, 0, 'WITHSCORES')[2]
  call('ZADD', list, whole((last or 0) + 1), t.id)
  ring_for(t.queue)
end

-- to_front(t): back to the front of its queue; those of one script in the order in which they come here.
local function to_front(t)
  fronted[#fronted + 1] = t
end

local function push_fronted()
  for i = #fronted, 1, -1 do
    local list = P .. 'ready:' .. fronted[i].queue
    local first = call('ZRANGE', list, 0, 0, 'WITHSCORES')[2]
    call('ZADD', list, whole((first or 0) - 1), fronted[i].id)
    ring_for(fronted[i].queue)
  end
end

-- full(t, i): is the line at link i as long as this ticket accepts? One that was past this link before is not turned away.
local function full(t, i)
  local o = at(t, i)
  local most, key = i >= t.reached and longest(t, o), t.links[o + KEY]
  return most and begun.newcomers(key, note(key), waiting(key, note(key))) >= most
end

-- may_be_stuck(t): t, which waits for a slot, may be one of a circle of tickets that wait for each other, if somebody waits for a slot that it
-- holds, and none of those who hold what it waits for can go on; of those a few are looked at. A sweep looks at all: include/knot.lua.
local function may_be_stuck(t)
  local most = 10
  local o = at(t, t.at)
  local key, wanted = t.links[o + KEY], false
  if not HOLDS[t.links[o]] then return false end
  for i = 1, t.at - 1 do
    local p = at(t, i)
    wanted = wanted or (HOLDS[t.links[p]] and waited(note(t.links[p + KEY])))
  end
  if not wanted then return false end
  local special, found = note(key), false
  local heavy = t.links[o + WEIGHT] ~= '1' or (special and (special.extra or special.size))
  local flat = call('HSCAN', P .. 'hold:' .. key, 0, 'COUNT', most)[2]
  for i = 1, math.min(#flat, 2 * most), 2 do
    local other = ticket(flat[i])
    spend(2)
    if other and other.state == 'waiting' then
      found = true
    elseif not heavy then
      return false -- when that one ends there is room
    end
  end
  return found
end

-- park(t): t waits at its link AT; its message must be in the store.
local function park(t)
  local o = at(t, t.at)
  t.state, t.since, t.worker, t.fence = 'waiting', whole(now), '', 0
  join_line(t)
  save(t)
  call('HINCRBY', P .. 'counts', 'parked', 1)
  if t.expires ~= '' then expiry.ring(t) end
  if t.links[o] == 'r' and t.due then
    alarm('rate', t.links[o + KEY], t.due, 'LT')
  elseif t.links[o] == 'f' then
    floats(t, o)
    alarm('refresh', t.links[o + KEY], now, 'LT')
  end
  if t.at > 1 and may_be_stuck(t) then alarm('knot', t.links[o + KEY], now) end
  newest.enter(t, o)
end

-- take_over(t): true when the message of t, which was granted, goes to the caller with the answer. Only release.lua can.
local take_over

-- step_back(t): nobody fetches from its queue at present. So it gives its turn to the others, and lies at the front of its queue: it asks again, in its old
-- place, when someone has resumed the queue.
local function step_back(t)
  free_slots(t)
  t.state = 'away'
  save(t)
  to_back(t)
end

-- grant(t): the chain is done; the message goes to the front of its queue, or to the outbox for another broker.
local function grant(t)
  t.state, t.since, t.worker, t.fence = 'granted', whole(now), '', 0
  if t.expires ~= '' then silence('expire', t.id) end
  if is_stopped(t.queue) then return step_back(t) end
  if take_over and take_over(t) then return end
  save(t)
  alarm('grant', t.id, now + setting('grant'))
  if t.queue ~= '' then to_back(t) else into_outbox(t) end
end

-- finish(t, reason): t, which stands in no line any more, will not run. It lies in the outbox, with its message, until someone has told its result backend.
local function finish(t, reason)
  free_slots(t)
  silence('expire', t.id)
  silence('grant', t.id)
  t.state, t.since, t.worker, t.fence, t.reason = 'ended', whole(now), '', 0, reason
  save(t)
  into_outbox(t)
end

-- go_away(t, patience): the broker has the message, the store remembers place and paid tokens until it turns up again.
local function go_away(t, patience)
  free_slots(t)
  t.state, t.since, t.worker, t.fence = 'away', whole(now), '', 0
  if t.kept == '' then expiry.forget(t, patience) end
  save(t)
end

-- set_aside(id, record): what can't be read is kept for a person to look at, message and all, and never runs.
local function set_aside(id, record, why)
  local task, nonce = string.match(id, '^(.+)%.([^.]+)$')
  local message = task and call('HGET', P .. 'task:' .. task, nonce .. ':m')
  call('HSET', P .. 'aside', id, cjson.encode({ why = why, record = record or '', message = message or '', at = whole(wall()) }))
  if task then call('HDEL', P .. 'task:' .. task, nonce, nonce .. ':m') end
end
