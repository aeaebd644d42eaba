-- alarms: one sorted set of "<what>|<whom>" -> time. Nothing polls: a sweep rings those that are due and says when the next is.
-- grant|<ticket> rate|<key> wake|<key> expire|<ticket> forget|<ticket> cancelled|<task id> refresh|<key> bury|<worker>
-- alarm(what, whom, when): set or moved; with 'LT' never moved to later.
local soonest
local function alarm(what, whom, when, rule)
  when = math.ceil(when)
  if not soonest or when < soonest then soonest = when end
  call('ZADD', P .. 'alarms', rule or 'CH', whole(when), what .. '|' .. whom)
end

local function silence(what, whom)
  call('ZREM', P .. 'alarms', what .. '|' .. whom)
end

local function next_alarm()
  return call('ZRANGE', P .. 'alarms', 0, 0, 'WITHSCORES')[2] or ''
end

-- ring_bell(): a sweeper sleeps a second at most; one that is needed sooner is woken through the list bell.
local NAP = 1000000
local function ring_bell()
  if not soonest or soonest >= now + NAP or call('EXISTS', P .. 'leases') == 0 then return end -- nobody listens without one
  if call('EXISTS', P .. 'bell') == 0 then call('RPUSH', P .. 'bell', '1') end
end

-- setting(name): microseconds from the hash config, which every beat writes from the worker's configuration.
local DEFAULTS = { grant = 30e6, forget = 86400e6, remember = 10800e6, refresh = 30e6, lease = 30e6 }
local function setting(name)
  return tonumber(call('HGET', P .. 'config', name)) or DEFAULTS[name]
end
