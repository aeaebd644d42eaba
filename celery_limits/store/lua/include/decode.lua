-- needs record
-- Records, in task:<task id> under the nonce: fields joined by tabs, a newline, then the links. They are in a shared Redis, so
-- they are read like any foreign input: nil means "not a ticket". The last field before the newline are the lines that it has
-- stood in since it was published or last ran, each as "<link>:<microseconds> "; most records have none.
local sound, decode, encode, save, forget, ticket, message, at, key_at, kind_at, longest
do
local HEAD = '^(%l+)\t([^\t]*)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t(%l*)\t([^\t]*)\t'
  .. '(%d+)\t([^\t]*)\t([^\t]*)\t(%d*)\t(%d*)\t(1?)\t(%d*)\t([%d: ]*)\n\t(.+)$'
local STATES = { waiting = true, granted = true, running = true, away = true, ended = true, finished = true, delayed = true }
local WITHOUT_LINKS = { delayed = true, ended = true } -- a message without limits is in no other state

local MAX_WEIGHT = 10000

local MOST_GROUP, LEAST_SHARE, MOST_SHARE = 200, 0.001, 10000

local function sound_group(extra, share, group)
  if not string.find(extra, '|', 1, true) then return true end
  if not share or not group or share < LEAST_SHARE or share > MOST_SHARE then return false end
  return group ~= '' and #group <= MOST_GROUP and not string.find(group, '%c')
end

local function sound_link(links, o)
  local kind, size, weight = links[o], links[o + SIZE], links[o + WEIGHT]
  local extra, share, group = split_extra(links[o + EXTRA])
  if not sound_group(links[o + EXTRA], share, group) then return false end
  if links[o + KEY] == '' or not string.find(weight, '^[1-9]%d*$') or tonumber(weight) > MAX_WEIGHT then return false end
  if kind == 'r' then return (tonumber(size) or -1) >= 0 and tonumber(size) < 1e18 and string.find(extra, '^[1-9]%d*$') end
  if size == '' or (kind ~= 'w' and not string.find(size, '^%d+$')) then return false end
  if kind == 'd' then return weight == '1' and string.find(size, '^[1-9]') and string.find(extra, '^%d*k?$') end
  local line, wins, rest = string.match(extra, '^([%d+-]?%d*)([~!]?)(.*)$')
  if wins ~= '' and not string.find(line, '^[1-9]%d*$') then return false end
  if kind == 'c' or kind == 'w' then return rest == '' and line ~= '-' end
  return kind == 'f' and line ~= '' and string.find(rest, '^ %d+ .+$')
end

function sound(t)
  if (t.n < 1 and not WITHOUT_LINKS[t.state]) or t.n % 1 ~= 0 or not STATES[t.state] or t.at < 1 or t.at > t.n + 1 then return false end
  for o = 1, #t.links, WIDTH do
    if not sound_link(t.links, o) then return false end
  end
  return true
end

function decode(task, nonce, record)
  local t = { id = task .. '.' .. nonce, task = task, nonce = nonce, base = 1, links = {} }
  local chain, n = nil, 0
  t.state, t.worker, t.fence, t.sends, t.arrival, t.at, t.reached, t.kept, t.reason,
    t.rank, t.delivery, t.queue, t.expires, t.since, t.late, t.cut, t.waits, chain = string.match(record, HEAD)
  if not chain then return nil end
  for field in string.gmatch(chain ~= '\t' and chain or '', '([^\t]*)\t') do
    n = n + 1
    t.links[n] = field
  end
  t.n = n / WIDTH
  t.sends, t.arrival, t.rank = tonumber(t.sends), tonumber(t.arrival), tonumber(t.rank)
  t.at, t.reached = tonumber(t.at), tonumber(t.reached)
  return sound(t) and t or nil
end

function encode(t)
  return table.concat({ t.state, t.worker, t.fence, t.sends, t.arrival, t.at, t.reached, t.kept, t.reason,
    t.rank, t.delivery, t.queue, t.expires, t.since, t.late, t.cut, t.waits .. '\n\t' }, '\t')
    .. table.concat(t.links, '\t', t.base, t.base + t.n * WIDTH - 1) .. '\t'
end

function save(t)
  call('HSET', P .. 'task:' .. t.task, t.nonce, encode(t))
end

-- forget(t): the record and the message go; an empty task hash goes with them.
function forget(t)
  call('HDEL', P .. 'task:' .. t.task, t.nonce, t.nonce .. ':m')
end

-- ticket(id): the ticket, or nil and what stands in its place.
function ticket(id)
  local task, nonce = string.match(id, '^(.+)%.([^.]+)$')
  if not task then return nil, nil end
  local record = call('HGET', P .. 'task:' .. task, nonce)
  return record and decode(task, nonce, record), record
end

function message(t)
  return call('HGET', P .. 'task:' .. t.task, t.nonce .. ':m')
end

-- at(t, i): where link i (from 1) starts in the links of t.
function at(t, i)
  return t.base + (i - 1) * WIDTH
end

function key_at(t)
  return t.links[at(t, t.at) + KEY]
end

function kind_at(t)
  return t.links[at(t, t.at)]
end

-- longest(t, o): how long a line this link accepts, nil for any.
function longest(t, o)
  local kind, extra = t.links[o], split_extra(t.links[o + EXTRA])
  if kind == 'c' or kind == 'w' then return tonumber(extra) end
  if kind == 'f' then return tonumber(string.match(extra, '^(%d+) ')) end
end
end
