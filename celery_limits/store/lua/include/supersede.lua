-- needs wake
-- Newest wins, the writing part; include/newest.lua says what is kept.
do
local MOST_TRAILS = 50000

-- remember(field, value): for as long as a revoke is; beyond MOST_TRAILS the one that lapses first is forgotten.
local function remember(field, value)
  call('HSET', P .. 'successors', field, value)
  call('ZADD', P .. 'trails', whole(now + setting('remember')), field)
  if call('ZCARD', P .. 'trails') > MOST_TRAILS then call('HDEL', P .. 'successors', call('ZPOPMIN', P .. 'trails')[1]) end
  spend(4)
end

-- newest.trail(t, by): explain follows it.
function newest.trail(t, by)
  if t.task ~= by then remember('task ' .. t.task, by) end
end

-- superseded_at(key, t, by): whatever arrived before t at this key, and comes later, comes too late.
local function superseded_at(key, t, by)
  local arrival = string.match(call('HGET', P .. 'successors', 'key ' .. key) or '', '^(%d+) ')
  if not arrival or tonumber(arrival) < t.arrival then remember('key ' .. key, whole(t.arrival) .. ' ' .. by) end
  newest.trail(t, by)
end

-- end_waiter(t, by): t, which has not begun and whose message the store has, ends as superseded.
local function end_waiter(t, by)
  if t.state == 'waiting' then
    leave_line(t)
  elseif t.queue ~= '' then
    call('ZREM', P .. 'ready:' .. t.queue, t.id)
  end
  finish(t, 'superseded ' .. by)
  soonest = now -- someone is to report it
end

-- trim(key, most, by): the ones that have waited longest make room for the newest.
local function trim(key, most, by)
  local waits = newest.waiting(key)
  while budget > 0 and call('ZCARD', waits) > most do
    local id = call('ZRANGE', waits, 0, 0)[1]
    local t = ticket(id)
    if id == by.id then return end
    call('ZREM', waits, id)
    if t and t.state == 'waiting' then
      superseded_at(key, t, by.task)
      end_waiter(t, by.task)
    end
    spend(20)
  end
end

-- end_holder(t, key, by): t holds the key. One that runs is ended by its worker, which reads orders:<worker> with each sweep; its slot is free
-- when it is released. One whose message is on its way is refused when it comes.
local function end_holder(t, key, by)
  superseded_at(key, t, by)
  if t.state ~= 'running' and t.kept == 'own' then return end_waiter(t, by) end
  t.reason = 'superseded ' .. by
  save(t)
  call('ZADD', newest.runs(key), whole(-call('ZSCORE', newest.runs(key), t.id)), t.id)
  if t.state ~= 'running' then return end
  call('ZADD', P .. 'orders:' .. t.worker, whole(now), t.id)
  local bell = P .. 'bell:' .. t.worker
  if call('EXISTS', bell) == 0 then
    call('RPUSH', bell, '1')
    call('PEXPIRE', bell, 10000)
  end
end

-- preempt_in(key): each newcomer that waits there has one holder ended, the one that has held longest, unless that arrived later.
local function preempt_in(key)
  local waits, runs = newest.waiting(key), newest.runs(key)
  local first = call('ZREVRANGE', waits, 0, 0, 'WITHSCORES')
  local by = first[1] and string.match(first[1], '^(.+)%.[^.]+$')
  local wanted = by and call('ZCARD', waits) - call('ZCOUNT', runs, '-inf', '(0') or 0
  spend(4)
  while wanted > 0 and budget > 0 do
    local id = call('ZRANGEBYSCORE', runs, '(0', '+inf', 'LIMIT', 0, 1)[1]
    local t = id and ticket(id)
    if not id or (t and t.arrival > tonumber(first[2])) then return end
    if t then end_holder(t, key, by) else call('ZREM', runs, id) end
    wanted = wanted - 1
    spend(20)
  end
end

-- newest.preempt(key, special): called when nobody who waits at the key can go on. Of groups, those that this script has to do with.
function newest.preempt(key, special)
  local sets = newest.touched[key] or {}
  newest.touched[key] = nil
  if special.preempt then sets[key] = true end
  for name in pairs(sets) do
    preempt_in(name)
  end
end

-- open(t, o): the time at which a debounce lets pass who waits there moves with each that comes.
local function open(t, o)
  local key, at_most = t.links[o + KEY], tonumber(string.match(t.links[o + EXTRA], '^%d+'))
  local special = note(key)
  local first = tonumber(special and special['d.first']) or now
  local due = now + tonumber(t.links[o + SIZE])
  if at_most then due = math.min(due, first + at_most) end
  write_note('HSET', key, 'd.first', whole(first), 'd.due', whole(due))
  alarm('debounce', key, due)
end

-- newest.enter(t, o): t waits at the link at o from now on. One that was past it before waits as any other.
function newest.enter(t, o)
  if t.links[o] == 'd' then open(t, o) end
  local mark, most = newest.mark(t, o)
  if not mark or t.reached > t.at then return end
  local key = newest.key(t, o)
  call('ZADD', newest.waiting(key), whole(t.arrival), t.id)
  trim(key, most, t)
  if mark == '!' then
    if key == t.links[o + KEY] then write_note('HSET', key, 'preempt', '1') end
    newest.touch(t, o)
    freed[#freed + 1] = t.links[o + KEY] -- whom it preempts is decided when all that was freed is taken
  end
end

-- A damaged key must not keep the caller from what it has begun: the audit finds it.
newest.pass_due = function(t, i)
  local o = at(t, i)
  if t.links[o] ~= 'd' then return false end
  local special = note(t.links[o + KEY])
  local due = tonumber(special and special['d.due'])
  if not due or due > now or not waited(special) then return false end
  pcall(wake, t.links[o + KEY])
  return true
end
end
