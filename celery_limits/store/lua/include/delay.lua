-- needs decode number
-- Delays. A message that must not start yet waits in the store as a ticket in the state `delayed`, limited or not: the record of a message
-- without limits has no links. Its field DELIVERY says when it is due and into which list it goes then. The sorted set later orders
-- all of them by due time, and by arrival where that is the same.
local LATER = P .. 'later'

local function later_member(t)
  return string.format('%016.0f|%s', t.arrival, t.id)
end

-- due_of(t): when it is due, and its list; nil for a record that does not say.
local function due_of(t)
  local due, list = string.match(t.delivery, '^(%d+) (.+)$')
  return tonumber(due), list
end

local function list_later(t)
  call('ZADD', LATER, whole(due_of(t)), later_member(t))
end

-- delay(t, text): t waits until it is due.
local function delay(t, text)
  t.state, t.kept, t.arrival = 'delayed', 'own', serial()
  call('HSET', P .. 'task:' .. t.task, t.nonce .. ':m', text)
  save(t)
  list_later(t)
end

-- leave_later(t): it does not wait for its time any more.
local function leave_later(t)
  call('ZREM', LATER, later_member(t))
end

-- next_due(): when the first of them is due, '' if there is none.
local function next_due()
  return call('ZRANGE', LATER, 0, 0, 'WITHSCORES')[2] or ''
end
