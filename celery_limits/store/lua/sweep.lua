-- sweep: whatever time has brought: alarms and delayed messages that are due, leases that lapsed, rates that are idle. Any worker may call it.
--
-- KEYS  the namespace
-- ARGV  now, worker (may be asked to refresh floating limits; '' is not asked), lease, batch (how much to do: at most so many of each kind, within a
--       budget of ten units each)
-- Outcome  swept; detail: workers found dead; more = 1: call again; outbox: how many wait there;
--          next: when to call again at the latest; refreshes for this worker; behind that, the tickets that this worker runs and is to end,
--          each with the task id that has superseded it, until they are released; behind that, where tickets waited for each
--          other, of each that gave up its slots: ticket, the key that it waited at, who waited where. '' for a ticket: too large a knot
-- include base clock number work unacked record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede delivery report recover pulse knot find_header seal arrival delay due changes steer stop_queue

tick()
local worker, lease, batch = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
budget = 10 * batch
local refreshes, joined = {}, false
local ring = {}

local untied = {}

ring.wake, ring.rate, ring.debounce = wake, wake, wake

-- Those of a knot who must give up their slots do; the answer says who, and who waited for whom. One that is too large for a script is named
-- by its key alone.
function ring.knot(key)
  budget = math.max(budget, 300) -- or those who are walked again come before those whom they make room for
  local victims, names, large = knot.find(key)
  for _, t in ipairs(victims) do
    untied[#untied + 1] = { t.id, key_at(t), names }
  end
  if large then untied[#untied + 1] = { '', key, names } end
  knot.restart(victims)
end

-- Not picked up in time: the slots go to those who can use them. The message stays where it is, and so does its place in line.
function ring.grant(id)
  local t = ticket(id)
  if t and t.state == 'granted' then go_away(t, setting('forget')) end
end

function ring.expire(id)
  local t = ticket(id)
  if not t or t.state ~= 'waiting' then return end
  if not expiry.passed(t) then return expiry.ring(t) end -- the clock of the server has been set back
  leave_line(t)
  finish(t, 'expired')
end

function ring.forget(id)
  local t = ticket(id)
  if t and t.kept == '' and (t.state == 'away' or t.state == 'finished') then forget(t) end
end

function ring.reclaim(name)
  if not reclaim(name) then
    alarm('reclaim', name, now)
    more = 1
  end
end

-- The places of a queue have changed: the keys whose size follows them are walked.
function ring.places(queue)
  ring.walk(whole(serial()) .. ' ' .. queue)
end

function ring.walk(text)
  local before, queue = string.match(text, '^(%d+) (.*)$')
  local key = before and followers.next(queue, before)
  while key do
    if budget <= 0 then
      more = 1
      return alarm('walk', text, now)
    end
    freed[#freed + 1] = key
    followers.walked(queue, key)
    spend(4)
    key = followers.next(queue, before)
  end
end

function ring.refresh(key)
  local special = note(key)
  if not special or not special['f.name'] then return end
  if claimed(special) then
    alarm('refresh', key, special['f.lapse'])
  elseif waited(special) and not fresh(special) then
    if joined then
      refreshes[#refreshes + 1] = ask(key, special, worker)
    else
      alarm('refresh', key, now + 1000000)
    end
  elseif waited(special) then
    alarm('refresh', key, special['f.fresh'])
  else -- idle: what it was is remembered for a while
    local idle = tonumber(special['f.fresh'] or 0) + setting('forget')
    if idle > now then return alarm('refresh', key, idle) end
    for field in pairs(special) do
      if string.find(field, '^f%.') then write_note('HDEL', key, field) end
    end
  end
end

-- What was set for a time.
function ring.resume(key)
  if ended(note(key), 'paused') then resume_key(key, by_itself()) end
end

function ring.reset(key)
  local special = note(key)
  if ended(special, 'size') then reset_key(key, by_itself(), special['size.before']) end
end

function ring.queue(queue)
  if is_stopped(queue) then start_queue(queue, by_itself()) end
end

call('DEL', P .. 'bell')
keep_time()
feel_pulse(lease, alive(worker))
local dead = {}
if not in_grace() then
  dead = call('ZRANGEBYSCORE', P .. 'leases', '-inf', whole(now), 'LIMIT', 0, batch)
  for _, name in ipairs(dead) do
    declare_dead(name)
  end
end
joined = alive(worker) -- after the dead were named: it may be one of them

enter_due(batch)
local due = call('ZRANGEBYSCORE', P .. 'alarms', '-inf', whole(now), 'LIMIT', 0, batch)
for _, name in ipairs(due) do
  if budget <= 0 then
    more = 1
    break
  end
  spend(8)
  call('ZREM', P .. 'alarms', name)
  local what, whom = string.match(name, '^(%a+)|(.*)$')
  if ring[what] then ring[what](whom) end
end
if #due == batch then more = 1 end

local idle = call('ZRANGEBYSCORE', P .. 'rates', '-inf', whole(now), 'LIMIT', 0, batch)
if idle[1] then call('ZREM', P .. 'rates', unpack(idle)) end

local lapsed = call('ZRANGEBYSCORE', P .. 'remembered', '-inf', whole(now), 'LIMIT', 0, batch)
for _, task in ipairs(lapsed) do
  call('DEL', P .. 'cancelled:' .. task)
  call('ZREM', P .. 'remembered', task)
end
if #lapsed == batch then more = 1 end

local trails = call('ZRANGEBYSCORE', P .. 'trails', '-inf', whole(now), 'LIMIT', 0, batch)
if trails[1] then
  call('HDEL', P .. 'successors', unpack(trails))
  call('ZREM', P .. 'trails', unpack(trails))
end
if #trails == batch then more = 1 end
still_pulse()

drain()
soonest = nil -- the caller is awake, and is told when to be so again
local answer = reply('swept', dead, refreshes)
answer[4] = call('ZCOUNT', P .. 'outbox', '-inf', whole(now + outboxed))
local later = tonumber(next_due())
if later and (answer[5] == '' or later < tonumber(answer[5])) then answer[5] = whole(later) end
local lapse = call('ZRANGE', P .. 'leases', 0, 0, 'WITHSCORES')[2]
if lapse then lapse = whole(math.max(tonumber(lapse), tonumber(call('HGET', P .. 'pulse', 'grace') or 0))) end
if lapse and (answer[5] == '' or tonumber(lapse) < tonumber(answer[5])) then answer[5] = lapse end
answer[8] = {}
for _, id in ipairs(joined and call('ZRANGE', P .. 'orders:' .. worker, 0, 19) or {}) do
  local t = ticket(id)
  local by = t and t.state == 'running' and t.worker == worker and newest.successor(t)
  if by then
    answer[8][#answer[8] + 1] = { id, by }
  else
    call('ZREM', P .. 'orders:' .. worker, id)
  end
end
if untied[1] then answer[#answer + 1] = untied end
return answer
