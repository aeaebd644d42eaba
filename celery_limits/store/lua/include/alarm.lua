-- needs clock number
-- alarms: one sorted set of "<what>|<whom>" -> time. Nothing polls: a sweep rings those that are due and says when the next is.
-- grant|<ticket> rate|<key> wake|<key> expire|<ticket> forget|<ticket> refresh|<key> reclaim|<worker> debounce|<key> places|<queue> walk|<serial> <queue>
-- knot|<key> resume|<key> reset|<key> queue|<queue>
-- alarm(what, whom, when): set or moved; with 'LT' never moved to later.
local soonest, alarm, silence, next_alarm, ring_bell, setting, expiry
do
function alarm(what, whom, when, rule)
  when = math.ceil(when)
  if not soonest or when < soonest then soonest = when end
  call('ZADD', P .. 'alarms', rule or 'CH', whole(when), what .. '|' .. whom)
end

function silence(what, whom)
  call('ZREM', P .. 'alarms', what .. '|' .. whom)
end

function next_alarm()
  return call('ZRANGE', P .. 'alarms', 0, 0, 'WITHSCORES')[2] or ''
end

-- ring_bell(): a sweeper sleeps a second at most; one that is needed sooner is woken through the list bell.
local NAP = 1000000
function ring_bell()
  if not soonest or soonest >= now + NAP or call('EXISTS', P .. 'leases') == 0 then return end -- nobody listens without one
  if call('EXISTS', P .. 'bell') == 0 then call('RPUSH', P .. 'bell', '1') end
end

-- setting(name): microseconds from the hash config, which every beat writes from the worker's configuration.
local DEFAULTS = { grant = 30e6, forget = 86400e6, remember = 10800e6, refresh = 30e6, lease = 30e6 }
function setting(name)
  return tonumber(call('HGET', P .. 'config', name)) or DEFAULTS[name]
end

-- A table, since a script can have no more than 200 locals.
expiry = {}

-- An expiry is a time of the server's clock, which may be set back, and an alarm is one of the namespace.
function expiry.passed(t)
  return t.expires ~= '' and tonumber(t.expires) <= wall()
end

function expiry.ring(t)
  alarm('expire', t.id, t.expires + written) -- too early rather than too late: it is set again
end

-- expiry.forget(t, patience): the record goes when so much time has passed, or its task has expired: what comes after that is refused anyway.
function expiry.forget(t, patience)
  local last = t.expires ~= '' and t.expires + ahead or math.huge
  alarm('forget', t.id, math.min(now + patience, math.max(last, now + 1)))
end
end
