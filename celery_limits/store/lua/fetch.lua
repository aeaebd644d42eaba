-- fetch: takes messages from queues and records them as this worker's, in one step.
--
-- KEYS  the namespace
-- ARGV  now, worker ('' when nothing is to be recorded), the mark of its channel, how many at most, flags (r: granted messages
--       first; c: a queue that gave one goes to the end of the cycle; s: put what must wait into its line; b: the worker is busy,
--       so what was granted just now is left to one that has a place), how many
--       deliveries are acknowledged and their fields; then the queues as in include/queues.lua
-- Returns  field, number of the queue (from 1) and message of each, none of a queue that someone has paused; or 'lost': this worker holds no
--          lease, beat first.
-- include base ring unacked queues

local worker, mark, room, flags = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local acked, plain = read_acked(7, tonumber(ARGV[6]))
if plain then remove_deliveries(worker, acked) end
read_queues(7 + #acked)
local ready = {}
for i, queue in ipairs(queues) do
  ready[i] = P .. 'ready:' .. queue
end

local found, kept, n, sifted, bytes = {}, {}, 0, 0, 0
local sifting = string.find(flags, 's', 1, true)
local MOST_SIFTED = 50 -- some 3 ms, for which everyone else waits
local MOST_BYTES = 1024 * 1024 -- of messages; one that begins below is taken whole
local YOUNG = 1000000 -- microseconds
local must_wait -- with `sifting` only; below
local passed_over = {} -- queues that someone has paused, by number

-- keep(queue, list, text, id): the message becomes this worker's, or stands in its line already.
local function keep(queue, list, text, id)
  if sifting and not id and not bare[queue] then
    local fine, stands = pcall(must_wait, queue, text) -- a damaged key must not cost a message: the gate sees what is wrong
    if fine and stands then
      sifted = sifted + 1
      return
    end
  end
  n, bytes = n + 1, bytes + #text
  local field = ''
  if not bare[queue] then
    field = (id and 'g' or '') .. call('INCR', P .. 'serial') .. '.' .. mark
    kept[#kept + 1] = number_of(field)
    kept[#kept + 1] = delivery_of(field, queues[queue], list, id or '', text)
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
    local text = not (empty[list] or passed_over[queue]) and popped(list)
    if text then
      keep(queue, list, text)
      if string.find(flags, 'c', 1, true) then table.insert(order, table.remove(order, i)) end
      return true
    end
    empty[list] = true
  end
  return false
end
local function pop_some(list, count)
  local texts = popped(list, count) or {}
  for _, text in ipairs(texts) do
    keep(1, list, text)
  end
  return #texts == count
end
-- at_once(most): how many to pop together: where messages are large, no more than MOST_BYTES have.
local function at_once(most)
  if n == 0 then return 1 end
  return math.max(1, math.min(most - n, 10, math.floor((MOST_BYTES - bytes) * n / bytes)))
end
local function has_room(most)
  return n < most and sifted < MOST_SIFTED and bytes < MOST_BYTES
end
local function pop(most)
  for step = 1, #steps do
    if #queues == 1 and not sifting then
      local list = list_of(step, 1)
      while not passed_over[1] and has_room(most) and pop_some(list, at_once(most)) do end
    else
      while has_room(most) and pop_one(step) do end
    end
  end
end

-- done(): what was taken is recorded; whoever else waits for these queues is told if there is more.
local busy, left_young = string.find(flags, 'b', 1, true), false
local function done()
  if broken and not found[1] then return broken end
  if kept[1] then call('ZADD', P .. 'unacked:' .. worker, unpack(kept)) end
  if has_room(room) and not left_young then
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
    if not passed_over[i] and call('EXISTS', unpack(lists)) > 0 then ring_for(queue) end
  end
  return found
end

local holds = worker == '' or call('ZSCORE', P .. 'worker:' .. worker, '!')
ready[#ready + 1] = P .. 'stopped'
local granted = call('EXISTS', unpack(ready)) > 0
ready[#ready] = nil
if plain and holds and not granted and not sifting then
  pop(room)
  return done()
end

-- From here on the long way: there are granted tickets, a queue is paused, or the queues are to be sifted.
-- include clock number work record hold rate walk serving note decode place newest fair followers begun line alarm floating stopped move wake supersede find_header payload handout delivery seal arrival
-- include park_early header

tick()
if not plain then
  drop(worker, acked)
  drain()
  ring_bell()
end
if not holds then return 'lost' end
for i, queue in ipairs(queues) do
  passed_over[i] = is_stopped(queue)
end

-- must_wait(queue, text): do others wait at the first limit of this message, and does it stand there now, too?
must_wait = function(queue, text)
  local header, from, at, stop = find_header(text)
  local key = header and may_wait(text) and first_key(header, at)
  local t = key and waited(note(key)) and ticket_of(header, stop, queues[queue], marks[queue])
  local rank = t and string.find(text, '"id": "' .. t.task .. '"', 1, true) and rank_in(text, from + stop)
  if not rank then return false end
  t.rank = math.min(rank, 255)
  return park_early(t, text, claim_in(header, at))
end

-- is_young(list): was the first of these tickets granted just now, so that one who has a place may still come for it?
local function is_young(list)
  local t = ticket(call('ZRANGE', list, 0, 0)[1] or '')
  local young = t ~= nil and t.state == 'granted' and now - (tonumber(t.since) or 0) < YOUNG
  left_young = left_young or young
  return young
end

-- take_granted(most): up to so many of the granted tickets, those of each queue in turn.
local function take_granted(most)
  local left = true
  while left and has_room(most) do
    left = false
    for i, queue in ipairs(queues) do
      local list = P .. 'ready:' .. queue
      local id = n < most and not (bare[i] or passed_over[i]) and not (busy and is_young(list)) and call('ZPOPMIN', list)[1]
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
