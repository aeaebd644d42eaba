-- needs alarm note record
-- Floating limits, in the fields f.* of a key's note: size (last known), fresh (until when), every, name (what refreshes it),
-- fails, and while a worker refreshes it: claim (that worker), token, lapse (when another may try).

-- floats(t, o): a link leaves behind what a sweep must know to have its key refreshed.
local function floats(t, o)
  local every, name = string.match(split_extra(t.links[o + EXTRA]), '^%S+ (%S+) (.*)$')
  write_note('HSET', t.links[o + KEY], 'f.every', every, 'f.name', name)
end

local function fresh(special)
  return tonumber(special and special['f.fresh'] or 0) > now
end

local function claimed(special)
  return tonumber(special and special['f.lapse'] or 0) > now
end

-- ask(key, special, worker): the worker is to refresh the key; nobody else will until it answers, dies or takes too long.
local function ask(key, special, worker)
  local token, lapse = serial(), whole(now + setting('refresh'))
  write_note('HSET', key, 'f.claim', worker, 'f.token', token, 'f.lapse', lapse)
  call('ZADD', P .. 'worker:' .. worker, token, 'refresh\t' .. key)
  alarm('refresh', key, lapse)
  return { key, token, special['f.name'] or '' }
end

-- unclaim(key, worker): a refresh that will not be answered, unless another worker has been asked since.
local function unclaim(key, worker)
  if call('HGET', P .. 'note:' .. key, 'f.claim') ~= worker then return end
  write_note('HDEL', key, 'f.claim', 'f.token', 'f.lapse')
  alarm('refresh', key, now)
end
