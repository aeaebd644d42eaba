-- needs decode place walk work
-- Newest wins: links of which a newcomer takes the place of another. on_full="replace" ('~' behind the longest line in a link's extra) ends
-- who has waited longest, on_full="preempt" ('!') also who has held longest; a debounce (kind d) lets only the newest wait. This file reads;
-- include/supersede.lua writes.
--   newest:<key>  sorted set: the tickets that wait there and may be superseded -> arrival
--   runs:<key>    sorted set: the tickets that hold the key and may be preempted -> number of their taking it, negative once they are
-- Where links name groups, each group has sets of its own: newest:<key> TAB <group>.
--   successors    hash: "task <task id>" -> the task id that superseded it; "key <key>" -> "<arrival> <task id>": the highest arrival that was
--                 superseded there, and by whom. What arrived earlier and comes later is superseded as well.
--   trails        sorted set: those fields -> until when they are kept
local newest = { touched = {} }
do
-- newest.mark(t, o): '~', '!' or 'd' where t may be superseded at the link at o, and how many may wait there; else nil.
function newest.mark(t, o)
  local extra = t.links[o + EXTRA]
  if t.links[o] == 'd' then return not string.find(extra, 'k', 1, true) and 'd' or nil, 1 end
  if not string.find(extra, '[~!]') then return nil end
  local most, mark = string.match(extra, '^(%d+)([~!])')
  return mark, tonumber(most)
end

function newest.key(t, o)
  local key, group = t.links[o + KEY], group_of(t, o)
  return group and key .. '\t' .. group or key
end

function newest.waiting(key)
  return P .. 'newest:' .. key
end

function newest.runs(key)
  return P .. 'runs:' .. key
end

-- newest.leave(t, o): t does not wait at this link any more.
function newest.leave(t, o)
  if newest.mark(t, o) then call('ZREM', newest.waiting(newest.key(t, o)), t.id) end
end

-- took: t has taken a slot of the link at o.
took = function(t, o)
  if newest.mark(t, o) == '!' then call('ZADD', newest.runs(newest.key(t, o)), 'NX', serial(), t.id) end
end

-- newest.touch(t, o): whether one who waits there is to preempt another is decided when the script ends.
function newest.touch(t, o)
  local key = t.links[o + KEY]
  newest.touched[key] = newest.touched[key] or {}
  newest.touched[key][newest.key(t, o)] = true
end

-- newest.gone(t, o): t has given back that slot.
function newest.gone(t, o)
  if newest.mark(t, o) ~= '!' then return end
  newest.touch(t, o)
  call('ZREM', newest.runs(newest.key(t, o)), t.id)
  if t.worker ~= '' then call('ZREM', P .. 'orders:' .. t.worker, t.id) end
end

-- newest.successor(t): the task id that has superseded this ticket, which may hold slots and even run; nil for most.
function newest.successor(t)
  return string.match(t.reason, '^superseded (.+)$')
end

-- debounced(t, i, special): does t, which waits at the debounce i, pass now? When that is stays with t. A newcomer never does.
function newest.debounced(t, i, special)
  local due = tonumber(special and special['d.due']) or now -- one that is lost must not keep it for ever
  if t.state ~= 'waiting' or t.at ~= i then return false end
  t.due = due
  return due <= now
end

-- newer_at(t, o, is_stop): who has superseded t at the link at o, if it has come too late there; `is_stop`: it would have to wait.
local function newer_at(t, o, is_stop)
  local mark, most = newest.mark(t, o)
  if not mark then return nil end
  local key = newest.key(t, o)
  spend(3)
  local arrival, by = string.match(call('HGET', P .. 'successors', 'key ' .. key) or '', '^(%d+) (.+)$')
  if arrival and t.arrival <= tonumber(arrival) and by ~= t.task then return by end
  if not is_stop then return nil end
  local waits = newest.waiting(key)
  local first = call('ZRANGE', waits, 0, 0, 'WITHSCORES')
  if first[1] and first[1] ~= t.id and t.arrival < tonumber(first[2]) and call('ZCARD', waits) >= most then
    return string.match(call('ZREVRANGE', waits, 0, 0)[1], '^(.+)%.[^.]+$')
  end
  if mark ~= '!' or first[1] then return nil end
  local id = call('ZRANGEBYSCORE', newest.runs(key), '(0', '+inf', 'LIMIT', 0, 1)[1]
  local holder = id and ticket(id)
  if holder and holder.id ~= t.id and holder.arrival > t.arrival then return holder.task end
end

-- newest.late(t, stop): the task id that supersedes t, a newcomer on its way to the link `stop`, since it arrived before others that came
-- there earlier; nil for one that may go on or wait.
function newest.late(t, stop)
  if t.arrival == NEWEST then return nil end
  for i = t.at, math.min(stop, t.n) do
    local by = i >= t.reached and newer_at(t, t.base + (i - 1) * WIDTH, i == stop)
    if by then return by end
  end
end
end
