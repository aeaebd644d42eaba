-- Records, in task:<task id> under the nonce: fields joined by tabs, a newline, then the links. They are in a shared Redis, so
-- they are read like any foreign input: nil means "not a ticket". The last field before the newline are the lines that it has
-- stood in since it was published or last ran, each as "<link>:<microseconds> "; most records have none.
local HEAD = '^(%l+)\t([^\t]*)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t(%l*)\t(%l*)\t'
  .. '(%d+)\t([^\t]*)\t([^\t]*)\t(%d*)\t(%d*)\t(1?)\t(%d*)\t([%d: ]*)\n\t(.+)$'
local STATES = { waiting = true, granted = true, running = true, away = true, ended = true, finished = true }

local MAX_WEIGHT = 10000

local function sound_link(links, o)
  local kind, size, weight, extra = links[o], links[o + SIZE], links[o + WEIGHT], links[o + EXTRA]
  if links[o + KEY] == '' or not string.find(weight, '^[1-9]%d*$') or tonumber(weight) > MAX_WEIGHT then return false end
  if kind == 'r' then return (tonumber(size) or -1) >= 0 and tonumber(size) < 1e18 and string.find(extra, '^[1-9]%d*$') end
  if not string.find(size, '^%d+$') then return false end
  if kind == 'c' then return string.find(extra, '^%d*$') end
  return kind == 'f' and string.find(extra, '^[%d-]%d* %d+ .+$')
end

local function sound(t)
  if t.n < 1 or t.n % 1 ~= 0 or not STATES[t.state] or t.at < 1 or t.at > t.n + 1 then return false end
  for o = 1, #t.links, WIDTH do
    if not sound_link(t.links, o) then return false end
  end
  return true
end

local function decode(task, nonce, record)
  local t = { id = task .. '.' .. nonce, task = task, nonce = nonce, base = 1, links = {} }
  local chain, n = nil, 0
  t.state, t.worker, t.fence, t.sends, t.arrival, t.at, t.reached, t.kept, t.reason,
    t.rank, t.delivery, t.queue, t.expires, t.since, t.late, t.cut, t.waits, chain = string.match(record, HEAD)
  if not chain then return nil end
  for field in string.gmatch(chain, '([^\t]*)\t') do
    n = n + 1
    t.links[n] = field
  end
  t.n = n / WIDTH
  t.sends, t.arrival, t.rank = tonumber(t.sends), tonumber(t.arrival), tonumber(t.rank)
  t.at, t.reached = tonumber(t.at), tonumber(t.reached)
  return sound(t) and t or nil
end

local function encode(t)
  return table.concat({ t.state, t.worker, t.fence, t.sends, t.arrival, t.at, t.reached, t.kept, t.reason,
    t.rank, t.delivery, t.queue, t.expires, t.since, t.late, t.cut, t.waits .. '\n\t' }, '\t')
    .. table.concat(t.links, '\t', t.base, t.base + t.n * WIDTH - 1) .. '\t'
end

local function save(t)
  call('HSET', P .. 'task:' .. t.task, t.nonce, encode(t))
end

-- forget(t): the record and the message go; an empty task hash goes with them.
local function forget(t)
  call('HDEL', P .. 'task:' .. t.task, t.nonce, t.nonce .. ':m')
end

-- ticket(id): the ticket, or nil and what stands in its place.
local function ticket(id)
  local task, nonce = string.match(id, '^(.+)%.([^.]+)$')
  if not task then return nil, nil end
  local record = call('HGET', P .. 'task:' .. task, nonce)
  return record and decode(task, nonce, record), record
end

local function message(t)
  return call('HGET', P .. 'task:' .. t.task, t.nonce .. ':m')
end

-- at(t, i): where link i (from 1) starts in the links of t.
local function at(t, i)
  return t.base + (i - 1) * WIDTH
end

local function key_at(t)
  return t.links[at(t, t.at) + KEY]
end

local function kind_at(t)
  return t.links[at(t, t.at)]
end

-- longest(t, o): how long a line this link accepts, nil for any.
local function longest(t, o)
  local kind, extra = t.links[o], t.links[o + EXTRA]
  if kind == 'c' then return tonumber(extra) end
  if kind == 'f' then return tonumber(string.match(extra, '^%d+')) end
end
