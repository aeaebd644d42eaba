-- fetch: takes messages from queues and records them as this worker's, in one step.
--
-- KEYS  the namespace
-- ARGV  now, worker ('' when nothing is to be recorded), the mark of its channel, how many at most, flags (r: granted messages
--       first; c: a queue that gave one goes to the end of the cycle; s: put what must wait into its line), how many
--       deliveries are acknowledged and their fields; how many queues, each with its name, '1' where it is consumed without
--       acknowledgement, and what tickets have at their end there; how many priority steps, and those; then the lists: for each
--       step, highest priority first, that of each queue
-- Returns  field, number of the queue (from 1) and message of each; or 'lost': this worker holds no lease, beat first.
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
local queues, bare, marks, ready = {}, {}, {}, {}
for i = 1, tonumber(ARGV[at]) do
  queues[i], bare[i], marks[i] = ARGV[at + 3 * i - 2], ARGV[at + 3 * i - 1] == '1', ARGV[at + 3 * i]
  ready[i] = P .. 'ready:' .. queues[i]
end
at = at + 3 * #queues + 1
local steps = counted()
at = at - 1
local function list_of(step, queue)
  return ARGV[at + (step - 1) * #queues + queue]
end

local found, kept, n, sifted = {}, {}, 0, 0
local sifting = string.find(flags, 's', 1, true)
local MOST_SIFTED = 100
local must_wait -- with `sifting` only; below

-- keep(queue, list, text, id): the message becomes this worker's, or stands in its line already.
local function keep(queue, list, text, id)
  if sifting and not id and not bare[queue] then
    local fine, stands = pcall(must_wait, queue, text) -- a damaged key must not cost a message: the gate sees what is wrong
    if fine and stands then
      sifted = sifted + 1
      return
    end
  end
  n = n + 1
  local field = ''
  if not bare[queue] then
    field = (id and 'g' or '') .. call('INCR', P .. 'serial') .. '.' .. mark
    kept[#kept + 1] = field
    kept[#kept + 1] = queues[queue] .. '\n' .. list .. '\n' .. (id or '') .. '\n' .. text
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
      while n < most and sifted < MOST_SIFTED and pop_one(step) do end
    end
  end
end

-- done(): what was taken is recorded; whoever else waits for these queues is told if there is more.
local function done()
  if broken and not found[1] then return broken end
  if kept[1] then call('HSET', unacked, unpack(kept)) end
  if n < room and sifted < MOST_SIFTED then
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
if plain and holds and not granted and not sifting then
  pop(room)
  return done()
end

-- From here on the long way: there are granted tickets, or the queues are to be sifted.
-- include clock number record hold rate walk note decode line alarm floating move wake payload delivery arrival stand header

tick()
if not plain then
  drop(worker, acked)
  drain()
  ring_bell()
end
if not holds then return 'lost' end

-- must_wait(queue, text): do others wait at the first limit of this message, and does it stand there now, too?
must_wait = function(queue, text)
  local key = first_key(text)
  local t = key and waited(note(key)) and ticket_of(text, queues[queue], marks[queue])
  return t and stand(t, text)
end

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
ring_bell()
return done()
