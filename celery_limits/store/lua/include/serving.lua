-- needs base
-- Which queues the live workers consume, and how many places their pools have: the hash `places`, one per namespace.
--   w:<worker>  "<places> <takes>", then a line for each queue that it consumes. `takes` is 0 for a worker that is stalled: no place
--               of its pool is free, and none became free for a while; else 1.
--   q:<queue>   "<places> <workers> <takers>": the sums over the workers that consume the queue; `takers` are those that take
--   all         "<workers> <takers>": how many workers have reported, and the takers of all queues
-- An entry lives as long as the lease of its worker: beat writes it, declare_dead (leave, lapse) drops it, and each time the sums
-- change along. So a read is one HGET, however many workers there are.
local serving = {}
do
local name = P .. 'places'

local function numbers(text)
  local a, b, c = string.match(text or '', '^(%d+) (%d+) ?(%d*)$')
  return tonumber(a) or 0, tonumber(b) or 0, tonumber(c) or 0
end

-- serving.of(queue): the places of the live workers that consume it, how many workers that are, and how many of them take.
function serving.of(queue)
  return numbers(call('HGET', name, 'q:' .. queue))
end

-- serving.known(): has every live worker said what it consumes, and does any of them take anything? If not, nobody can say that a queue
-- has no place: it may be that of a process that does not report.
function serving.known()
  local workers, takers = numbers(call('HGET', name, 'all'))
  return takers > 0 and workers == call('ZCARD', P .. 'leases')
end

-- serving.read(entry): places, takes and the queues of a worker's entry.
function serving.read(entry)
  local places, takes, rest = string.match(entry or '', '^(%d+) ([01])(.*)$')
  local queues = {}
  for queue in string.gmatch(rest or '', '\n([^\n]+)') do
    queues[#queues + 1] = queue
  end
  return tonumber(places) or 0, tonumber(takes) or 0, queues
end

-- add(entry, sign, before): what the entry of a worker says, counted or no longer counted. Before: the places of each of its queues, as they were.
local function add(entry, sign, before)
  local places, takes, queues = serving.read(entry)
  for _, queue in ipairs(queues) do
    local p, w, t = serving.of(queue)
    before[queue] = before[queue] or p
    p, w, t = p + sign * places, w + sign, t + sign * takes
    if w > 0 then
      call('HSET', name, 'q:' .. queue, string.format('%.0f %.0f %.0f', p, w, t))
    else
      call('HDEL', name, 'q:' .. queue)
    end
  end
  local workers, takers = numbers(call('HGET', name, 'all'))
  workers, takers = workers + sign, takers + sign * takes * #queues
  if workers > 0 then
    call('HSET', name, 'all', string.format('%.0f %.0f', workers, takers))
  else
    call('HDEL', name, 'all')
  end
end

-- serving.sums(entries): the sums of these entries, by field, as they should be.
function serving.sums(entries)
  local of, workers, all = {}, 0, 0
  for _, entry in pairs(entries) do
    local places, takes, queues = serving.read(entry)
    workers, all = workers + 1, all + takes * #queues
    for _, queue in ipairs(queues) do
      local sum = of['q:' .. queue] or { 0, 0, 0 }
      of['q:' .. queue] = { sum[1] + places, sum[2] + 1, sum[3] + takes }
    end
  end
  for field, sum in pairs(of) do
    of[field] = string.format('%.0f %.0f %.0f', unpack(sum))
  end
  if workers > 0 then of.all = string.format('%.0f %.0f', workers, all) end
  return of
end

-- serving.rewrite(entries, sums): nothing else is in the hash.
function serving.rewrite(entries, sums)
  call('DEL', name)
  for worker, entry in pairs(entries) do
    call('HSET', name, 'w:' .. worker, entry)
  end
  for field, sum in pairs(sums) do
    call('HSET', name, field, sum)
  end
end

-- serving.report(worker, entry): this is what the worker says from now on; nil: nothing. Returns the queues that have more or fewer places now.
function serving.report(worker, entry)
  local old = call('HGET', name, 'w:' .. worker) or nil
  if old == entry then return {} end
  local before, changed = {}, {}
  if old then
    call('HDEL', name, 'w:' .. worker)
    add(old, -1, before)
  end
  if entry then
    call('HSET', name, 'w:' .. worker, entry)
    add(entry, 1, before)
  end
  for queue, places in pairs(before) do
    if serving.of(queue) ~= places then changed[#changed + 1] = queue end
  end
  table.sort(changed)
  return changed
end
end
