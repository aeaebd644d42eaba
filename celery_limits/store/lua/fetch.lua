-- fetch: takes messages from queues and records them as this worker's, in one step.
--
-- KEYS  the namespace
-- ARGV  now, worker ('' when nothing is to be recorded), the mark of its channel, how many at most, flags (r: granted messages
--       first; c: a queue that gave one goes to the end of the cycle; s: look out for messages that will have to wait), how many
--       deliveries are acknowledged and their fields; how many queues, each with its name and '1' where it is consumed without
--       acknowledgement; how many priority steps, and those; then the lists: for each step, highest priority first, that of
--       each queue
-- Returns  field, number of the queue (from 1) and message of each; or 'lost': this worker holds no lease, beat first.
--          A negative number: others wait at the first limit of this message. It comes beside how many were asked for.
-- include base ring

local worker, mark, room, flags = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local unacked = P .. 'unacked:' .. worker
local at = 6
local function counted() -- a number and then so many arguments
  local n, list = tonumber(ARGV[at]), {}
  for i = 1, n do
    list[i] = ARGV[at + i]
  end
  at = at + n + 1
  return list
end

local acked = counted()
local plain = true
for _, field in ipairs(acked) do
  plain = plain and string.sub(field, 1, 1) ~= 'g'
end
if plain and acked[1] then call('HDEL', unacked, unpack(acked)) end
local queues, bare, ready = {}, {}, {}
for i = 1, tonumber(ARGV[at]) do
  queues[i], bare[i] = ARGV[at + 2 * i - 1], ARGV[at + 2 * i] == '1'
  ready[i] = P .. 'ready:' .. queues[i]
end
at = at + 2 * #queues + 1
local steps = counted()
at = at - 1
local function list_of(step, queue)
  return ARGV[at + (step - 1) * #queues + queue]
end

local found, kept, n, waits = {}, {}, 0, 0
local sifting = string.find(flags, 's', 1, true)
local MOST_WAITING = 100

-- must_wait(text): do others wait at the first limit of this message? The header has its fields in this order. What does not look
-- like that is left to the gate.
local lines = {}
local function must_wait(text)
  local key = string.match(text, '"limits": {"v": 1, "ticket": "[^"]*", "links": %[{"kind": "%l+", "key": "([^"\\]*)"')
  if not key or not string.find(text, '"eta": null', 1, true) then return false end
  if lines[key] == nil then
    lines[key] = false
    for _, field in ipairs(call('HKEYS', P .. 'note:' .. key)) do
      lines[key] = lines[key] or string.sub(field, 1, 6) == 'class:'
    end
  end
  return lines[key]
end

-- keep(queue, list, text, id): the message becomes this worker's.
local function keep(queue, list, text, id)
  if sifting and not id and not bare[queue] and waits < MOST_WAITING and must_wait(text) then
    waits = waits + 1
    queue = -queue
  else
    n = n + 1
  end
  local field, name = '', queues[math.abs(queue)]
  if not bare[queue] then
    field = (id and 'g' or '') .. call('INCR', P .. 'serial') .. '.' .. mark
    kept[#kept + 1] = field
    kept[#kept + 1] = name .. '\n' .. list .. '\n' .. (id or '') .. '\n' .. text
  end
  local last = #found
  found[last + 1], found[last + 2], found[last + 3] = field, queue, text
end

-- popped(list, count): a key that is no list must not cost what came from the others.
local broken
local function popped(...)
  local got = redis.pcall('RPOP', ...)
  if type(got) ~= 'table' or not got.err then return got end
  broken = got
end

-- pop(most): up to so many from the lists, in kombu's order: by priority, then around the queues.
local order, empty = {}, {}
for i = 1, #queues do
  order[i] = i
end
local function pop_one(step)
  for i, queue in ipairs(order) do
    local list = list_of(step, queue)
    local text = not empty[list] and popped(list)
    if text then
      keep(queue, list, text)
      if string.find(flags, 'c', 1, true) then table.insert(order, table.remove(order, i)) end
      return true
    end
    empty[list] = true
  end
  return false
end
local function pop(most)
  for step = 1, #steps do
    if n >= most then return end
    if #queues == 1 and not sifting then
      local list = list_of(step, 1)
      for _, text in ipairs(popped(list, most - n) or {}) do
        keep(1, list, text)
      end
    else
      while n < most and waits < MOST_WAITING and pop_one(step) do end
    end
  end
end

-- done(): what was taken is recorded; whoever else waits for these queues is told if there is more.
local function done()
  if broken and not found[1] then return broken end
  if kept[1] then call('HSET', unacked, unpack(kept)) end
  if n < room and waits < MOST_WAITING then
    for i, queue in ipairs(queues) do
      ready[i] = P .. 'call:' .. queue
    end
    call('DEL', unpack(ready))
    return found
  end
  for i, queue in ipairs(queues) do
    local lists = { P .. 'ready:' .. queue }
    for step = 1, #steps do
      lists[step + 1] = list_of(step, i)
    end
    if call('EXISTS', unpack(lists)) > 0 then ring_for(queue) end
  end
  return found
end

local holds = worker == '' or call('ZSCORE', P .. 'worker:' .. worker, '!')
local granted = call('EXISTS', unpack(ready)) > 0
if plain and holds and not granted then
  pop(room)
  return done()
end

-- From here on the long way: there are granted tickets.
-- include clock number record hold rate walk note decode line alarm floating move wake payload delivery

tick()
if not plain then
  drop(worker, acked)
  drain()
  ring_bell()
end
if not holds then return 'lost' end

-- list_at(queue, rank): the list of the queue that a message of this rank belongs to, should it have to go back.
local function list_at(queue, rank)
  local step = 1
  while steps[step + 1] and tonumber(steps[step + 1]) <= rank do
    step = step + 1
  end
  return list_of(step, queue)
end

-- take_granted(most): up to so many of the granted tickets, those of each queue in turn. From here on the message is this worker's
-- delivery, and the ticket waits to be picked up.
local function take_granted(most)
  local left = true
  while left and n < most do
    left = false
    for i, queue in ipairs(queues) do
      local id = n < most and not bare[i] and call('LPOP', P .. 'ready:' .. queue)
      if id then
        left = true
        local t = ticket(id)
        if t and t.kept == 'own' and (t.state == 'granted' or t.state == 'away') then
          local text = payload(t)
          call('HDEL', P .. 'task:' .. t.task, t.nonce .. ':m')
          t.kept, t.sends = '', math.max(t.sends, 1)
          save(t)
          if t.state == 'granted' then alarm('grant', id, now + setting('grant')) end
          if t.state == 'away' then alarm('forget', id, now + setting('forget')) end
          keep(i, list_at(i, t.rank), text, id)
        end
      end
    end
  end
end

-- Half of the room for each side, and the other half too if nobody else wants it: neither an endless line of granted tasks nor a
-- full queue keeps the other waiting.
local half = math.ceil(room / 2)
if string.find(flags, 'r', 1, true) then
  take_granted(half)
  pop(room)
  take_granted(room)
else
  pop(half)
  take_granted(room)
  pop(room)
end
return done()
