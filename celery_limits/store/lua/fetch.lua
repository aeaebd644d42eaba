-- fetch: takes messages from queues and records them as this worker's, in one step.
--
-- KEYS  the namespace
-- ARGV  now, worker ('' when nothing is to be recorded), the mark of its channel, how many at most, flags (r: granted messages
--       first; c: a queue that gave one goes to the end of the cycle; s: put what must wait into its line; b: the worker is busy,
--       so what was granted just now is left to one that has a place), how many
--       deliveries are acknowledged and their fields; then the queues as in include/queues.lua
-- Returns  field, number of the queue (from 1) and message of each; or 'lost': this worker holds no lease, beat first.
-- include base ring unacked queues

local worker, mark, room, flags = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local unacked = P .. 'unacked:' .. worker
local acked, plain = read_acked(7, tonumber(ARGV[6]))
if plain and acked[1] then call('HDEL', unacked, unpack(acked)) end
read_queues(7 + #acked)
local ready = {}
for i, queue in ipairs(queues) do
  ready[i] = P .. 'ready:' .. queue
end

local found, kept, n, sifted = {}, {}, 0, 0
local sifting = string.find(flags, 's', 1, true)
local MOST_SIFTED = 50 -- some 3 ms, for which everyone else waits
local YOUNG = 1000000 -- microseconds
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
    kept[#kept + 1] = delivery_of(queues[queue], list, id or '', text)
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
local busy, left_young = string.find(flags, 'b', 1, true), false
local function done()
  if broken and not found[1] then return broken end
  if kept[1] then call('HSET', unacked, unpack(kept)) end
  if n < room and sifted < MOST_SIFTED and not left_young then
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
-- include clock number record hold rate walk note decode line alarm floating move wake seek payload handout delivery arrival stand header

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

-- is_young(list): was the first of these tickets granted just now, so that one who has a place may still come for it?
local function is_young(list)
  local t = ticket(call('LINDEX', list, 0) or '')
  local young = t ~= nil and t.state == 'granted' and now - (tonumber(t.since) or 0) < YOUNG
  left_young = left_young or young
  return young
end

-- take_granted(most): up to so many of the granted tickets, those of each queue in turn.
local function take_granted(most)
  local left = true
  while left and n < most do
    left = false
    for i, queue in ipairs(queues) do
      local list = P .. 'ready:' .. queue
      local id = n < most and not bare[i] and not (busy and is_young(list)) and call('LPOP', list)
      if id then
        left = true
        local t = ticket(id)
        if t and t.kept == 'own' and (t.state == 'granted' or t.state == 'away') then
          keep(i, list_at(i, t.rank), hand_out(t), id)
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
