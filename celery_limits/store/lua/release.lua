-- release: what ran has ended, or goes back to its queue.
--
-- KEYS  the namespace
-- ARGV  now, task id, nonce, worker, fence, 'done' or 'back' (the worker returns the message to the broker itself), how many
--       deliveries are acknowledged in the same step and their fields; then, where the worker has a place for one who can go on
--       now: the mark of its channel, and its queues as in include/queues.lua
-- Outcomes
--   released   '' or 'kept'   kept: the store has the message too, and goes on with it by itself. Behind the aftermath, if one was
--                             handed over, which runs on this worker from now on: field, number of the queue (from 1) and
--                             message, as fetch has them, its ticket, its fence, and the lines it stood in as in include/decode.lua
--   corrupt    why            its record can't be read: nothing was changed
--   stale                     this admission holds nothing any more: nothing was changed or acknowledged, nobody woken
-- include base hold unacked

local task, nonce, worker, fence, back = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6] == 'back'
local record = call('HGET', P .. 'task:' .. task, nonce)
local mine = 'running\t' .. worker .. '\t' .. fence .. '\t'
if not record or string.sub(record, 1, #mine) ~= mine then return { 'stale', '' } end
local id = task .. '.' .. nonce
local acked, plain = read_acked(8, tonumber(ARGV[7]))

-- A ticket of which there was one copy leaves nothing behind; the links of its record say which slots to free.
local sends = string.sub(record, #mine + 1, #mine + 2)
local chain = string.find(record, '\n', #mine, true)
local simple = false
local keys, weights, notes, n = {}, {}, {}, 0
local single = (sends == '0\t' or sends == '1\t') and not string.find(record, '\tspare\t', #mine, true)
if chain and not back and single then
  local text = string.sub(record, chain + 2)
  local fair = false -- what its group holds is counted, and what may be preempted: that is for the long way
  for kind, key, weight, extra, past in string.gmatch(text, '([cfrdw])\t([^\t]+)\t[^\t]+\t(%d+)\t([^\t]*)\t()') do
    fair = fair or string.find(extra, '[|!]')
    simple = past > #text and not fair -- the links fill the record to its end, or it is not one to go by
    if kind == 'c' or kind == 'f' or kind == 'w' then
      n = n + 1
      keys[n], weights[n], notes[n] = key, weight, P .. 'note:' .. key
    end
  end
end
if simple then
  for i = 1, n do
    free_slot(keys[i], id, weights[i])
  end
  call('HDEL', P .. 'task:' .. task, nonce, nonce .. ':m')
  call('ZREM', P .. 'worker:' .. worker, id)
  if plain then remove_deliveries(worker, acked) end
  if plain and (n == 0 or call('EXISTS', unpack(notes)) == 0) then return 0 end -- a number says `released`, and nobody woken
end

-- From here on the long way: somebody may wait for what was freed, or the ticket is not forgotten.
-- include clock number work record rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede find_header payload handout delivery queues

tick()
local handed = {}

-- Whoever is let go by what is freed here need not go through its queue, if this worker consumes that and lives; but it passes
-- nobody who was granted before and is not fetched yet, nor anything in the queues of this worker: an endless line must not keep
-- that waiting. One with an eta, though that has come, Celery does not begin at once.
local from = 8 + #acked
if ARGV[from] and call('ZSCORE', P .. 'worker:' .. worker, '!') then
  read_queues(from + 1)
  local ahead = { unpack(ARGV, lists_from + 1) }
  for i, queue in ipairs(queues) do
    ahead[#ahead + 1] = P .. 'ready:' .. queue
  end
  take_over = function(t)
    local i = 1
    while queues[i] and queues[i] ~= t.queue do
      i = i + 1
    end
    if handed[1] or not queues[i] or bare[i] or call('EXISTS', unpack(ahead)) > 0 then return false end
    local text = message(t)
    if not text or not string.find(text, '"eta": null', 1, true) then return false end
    local waits = t.waits
    t.state, t.worker, t.fence, t.waits, t.since = 'running', worker, serial(), '', whole(wall())
    t.delivery = 'g' .. t.fence .. '.' .. ARGV[from]
    text = hand_out(t, text)
    call('ZADD', P .. 'worker:' .. worker, t.fence, t.id)
    record_delivery(worker, t.delivery, t.queue, list_at(i, t.rank), t.id, text)
    handed = { t.delivery, i, text, t.id, t.fence, waits }
    return true
  end
end

local function released(detail)
  if not (simple and plain) then drop(worker, acked) end
  local answer = reply('released', detail)
  answer[#answer + 1] = handed
  return answer
end

if simple then
  freed = keys
  return released()
end

local t = decode(task, nonce, record)
if not t then return { 'corrupt', 'unreadable record' } end
call('ZREM', P .. 'worker:' .. worker, id)
if not back then
  free_slots(t)
  forget(t)
  -- A second copy may be under way: it must find that the first has run. Another broker may still bring even the one that was kept
  -- as the spare, if it was not heard to be acknowledged; ours forgets it in the step that keeps it.
  if t.sends > 1 or (t.kept == 'spare' and t.queue == '') then
    t.state, t.kept = 'finished', ''
    alarm('forget', t.id, now + setting('remember'))
    save(t)
  end
  return released()
end
-- A spare goes on even though the worker returns its own copy: that may be the very message which came as the spare. Whichever
-- comes second finds the other and is dropped.
if t.kept == 'spare' then t.kept = 'own' end
if t.kept == '' then t.delivery = '' end -- the very delivery may ask once more, and nothing of it is parked
go_away(t, setting('forget'))
if t.kept == '' then return released() end
if t.queue ~= '' then to_front(t) else into_outbox(t) end
return released('kept')
