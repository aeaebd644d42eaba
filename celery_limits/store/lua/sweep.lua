-- sweep: whatever time has brought: alarms that are due, leases that lapsed, rates that are idle. Any worker may call it.
--
-- KEYS  the namespace
-- ARGV  now, worker (may be asked to refresh floating limits; '' is not asked), lease, batch
-- Outcome  swept; detail: workers found dead; more = 1: call again; outbox: how many wait there;
--          next: when to call again at the latest; refreshes for this worker
-- include base clock number record hold rate walk note decode line ring alarm floating move wake delivery recover pulse

tick()
local worker, lease, batch = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local refreshes, joined = {}, false
local ring = {}

ring.wake, ring.rate = wake, wake

-- Not picked up in time: the slots go to those who can use them. The message stays where it is, and so does its place in line.
function ring.grant(id)
  local t = ticket(id)
  if t and t.state == 'granted' then go_away(t, setting('forget')) end
end

function ring.expire(id)
  local t = ticket(id)
  if not t or t.state ~= 'waiting' then return end
  leave_line(t)
  finish(t, 'expired')
end

function ring.forget(id)
  local t = ticket(id)
  if t and t.kept == '' and (t.state == 'away' or t.state == 'finished') then forget(t) end
end

function ring.bury(name)
  if not bury(name, P .. 'dead:' .. name, batch) then
    alarm('bury', name, now)
    more = 1
  end
end

function ring.cancelled(task)
  call('DEL', P .. 'cancelled:' .. task)
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

call('DEL', P .. 'bell')
feel_pulse(lease, alive(worker))
local dead = {}
if not in_grace() then
  dead = call('ZRANGEBYSCORE', P .. 'leases', '-inf', whole(now), 'LIMIT', 0, batch)
  for _, name in ipairs(dead) do
    declare_dead(name)
  end
end
joined = alive(worker) -- after the dead were named: it may be one of them

local due = call('ZRANGEBYSCORE', P .. 'alarms', '-inf', whole(now), 'LIMIT', 0, batch)
for _, name in ipairs(due) do
  call('ZREM', P .. 'alarms', name)
  local what, whom = string.match(name, '^(%a+)|(.*)$')
  if ring[what] then ring[what](whom) end
end
if #due == batch then more = 1 end

local idle = call('ZRANGEBYSCORE', P .. 'rates', '-inf', whole(now), 'LIMIT', 0, batch)
if idle[1] then call('ZREM', P .. 'rates', unpack(idle)) end
still_pulse()

drain()
soonest = nil -- the caller is awake, and is told when to be so again
local answer = reply('swept', dead, refreshes)
answer[4] = call('ZCOUNT', P .. 'outbox', '-inf', whole(now + outboxed))
local lapse = call('ZRANGE', P .. 'leases', 0, 0, 'WITHSCORES')[2]
if lapse then lapse = whole(math.max(tonumber(lapse), tonumber(call('HGET', P .. 'pulse', 'grace') or 0))) end
if lapse and (answer[5] == '' or tonumber(lapse) < tonumber(answer[5])) then answer[5] = lapse end
return answer
