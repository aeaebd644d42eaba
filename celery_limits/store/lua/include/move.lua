-- How a ticket moves between its states. Each function leaves record, line, alarms and lists agreeing with one another;
-- keys that may have room afterwards are put on `freed`.
local outboxed, fronted = 0, {}

-- let_go(t): gives back every slot t holds, and remembers how far it had come.
local function let_go(t)
  for i = 1, t.at - 1 do
    local o = at(t, i)
    if t.links[o] ~= 'r' then
      hold('SREM', t.links[o + KEY], t.id, t.links[o + WEIGHT])
      freed[#freed + 1] = t.links[o + KEY]
    end
  end
  t.at = 1
end

-- The outbox is worked off in the order of its times; entries of one script are kept apart by a microsecond each.
local function into_outbox(t)
  call('ZADD', P .. 'outbox', whole(now + outboxed), t.id)
  outboxed = outboxed + 1
end

-- to_front(t): back to the front of its queue; those of one script in the order in which they come here.
local function to_front(t)
  fronted[#fronted + 1] = t
end

local function push_fronted()
  for i = #fronted, 1, -1 do
    call('LPUSH', P .. 'ready:' .. fronted[i].queue, fronted[i].id)
    ring_for(fronted[i].queue)
  end
end

-- full(t, i): is the line at link i as long as this ticket accepts? One that was past this link before is not turned away.
local function full(t, i)
  local o = at(t, i)
  local most = i >= t.reached and longest(t, o)
  return most and waiting(t.links[o + KEY], note(t.links[o + KEY])) >= most
end

-- park(t): t waits at its link AT; its message must be in the store.
local function park(t)
  local o = at(t, t.at)
  t.state, t.since, t.worker, t.fence = 'waiting', whole(now), '', 0
  join_line(t)
  save(t)
  if t.expires ~= '' then alarm('expire', t.id, t.expires) end
  if t.links[o] == 'r' and t.due then
    alarm('rate', t.links[o + KEY], t.due, 'LT')
  elseif t.links[o] == 'f' then
    floats(t, o)
    alarm('refresh', t.links[o + KEY], now, 'LT')
  end
end

-- take_over(t): true when the message of t, which was granted, goes to the caller with the answer. Only release.lua can.
local take_over

-- grant(t): the chain is done; the message goes to the front of its queue, or to the outbox for another broker.
local function grant(t)
  t.state, t.since, t.worker, t.fence = 'granted', whole(now), '', 0
  if t.expires ~= '' then silence('expire', t.id) end
  if take_over and take_over(t) then return end
  save(t)
  alarm('grant', t.id, now + setting('grant'))
  if t.queue ~= '' then
    call('RPUSH', P .. 'ready:' .. t.queue, t.id)
    ring_for(t.queue)
  else
    into_outbox(t)
  end
end

-- finish(t, reason): t, which stands in no line any more, will not run. It lies in the outbox, with its message, until someone has told its result backend.
local function finish(t, reason)
  let_go(t)
  silence('expire', t.id)
  silence('grant', t.id)
  t.state, t.since, t.worker, t.fence, t.reason = 'ended', whole(now), '', 0, reason
  save(t)
  into_outbox(t)
end

-- go_away(t, patience): the broker has the message, the store remembers place and paid tokens until it turns up again.
local function go_away(t, patience)
  let_go(t)
  t.state, t.since, t.worker, t.fence = 'away', whole(now), '', 0
  if t.kept == '' then alarm('forget', t.id, now + patience) end
  save(t)
end

-- set_aside(id, record): what can't be read is kept for a person to look at, message and all, and never runs.
local function set_aside(id, record, why)
  local task, nonce = string.match(id, '^(.+)%.([^.]+)$')
  local message = task and call('HGET', P .. 'task:' .. task, nonce .. ':m')
  call('HSET', P .. 'aside', id, cjson.encode({ why = why, record = record or '', message = message or '', at = whole(now) }))
  if task then call('HDEL', P .. 'task:' .. task, nonce, nonce .. ':m') end
end
