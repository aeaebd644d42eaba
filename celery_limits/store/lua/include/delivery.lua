-- needs move unacked
-- Deliveries go back to their queues, or are done with; include/unacked.lua says how they are kept.
local find_delivery, requeue_deliveries, requeue_all, drop
do
local function parts(stored)
  local field, queue, list, id, from = string.match(stored or '', '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n()')
  return field, queue, list, id, from and string.sub(stored, from)
end

-- find_delivery(worker, field): its field, queue, list, ticket and message; nothing when it is not this worker's any more.
function find_delivery(worker, field)
  local number = number_of(field)
  return parts(call('ZRANGEBYSCORE', P .. 'unacked:' .. worker, number, number)[1])
end

-- redelivered(text): the message marked as kombu marks what it restores. A quote inside of a JSON string is escaped, so what is
-- found here are names; no other byte is touched.
local function redelivered(text)
  if string.find(text, '"redelivered": true', 1, true) then return text end
  for _, name in ipairs({ '"headers": {', '"delivery_info": {' }) do
    local _, stop = string.find(text, name, 1, true)
    if stop then
      local comma = string.sub(text, stop + 1, stop + 1) == '}' and '' or ', '
      text = string.sub(text, 1, stop) .. '"redelivered": true' .. comma .. string.sub(text, stop + 1)
    end
  end
  return text
end

local function youngest_first(fields)
  table.sort(fields, function(a, b) return tonumber(number_of(a)) > tonumber(number_of(b)) end)
end

-- not_begun(worker, field, id): the worker was handed this ticket with its message, running, and gives it back: it is granted, as
-- one that is fetched, and whoever gets the message picks it up. A spare goes on by itself, as after release(back).
local function not_begun(worker, field, id)
  local t = ticket(id)
  if not t or t.state ~= 'running' or t.worker ~= worker or t.delivery ~= field then return end
  call('ZREM', P .. 'worker:' .. worker, id)
  t.state, t.worker, t.fence, t.since = 'granted', '', 0, whole((tonumber(t.since) or wall()) + ahead)
  if t.kept == 'spare' then
    t.kept = 'own'
    to_front(t)
  end
  save(t)
  alarm('grant', id, now + setting('grant'))
end

-- requeue_one(worker, push, ...): a delivery back to its queue: RPUSH to the front, LPUSH to the end.
local function requeue_one(worker, push, field, queue, list, id, text)
  if id ~= '' then not_begun(worker, field, id) end
  call(push, list, redelivered(text))
  remove_delivery(worker, field)
  ring_for(queue)
  spend(8 + #text / 1024)
end

-- requeue_deliveries(worker, fields, push): those at the front keep the order in which they were fetched.
function requeue_deliveries(worker, fields, push)
  youngest_first(fields)
  for _, field in ipairs(fields) do
    local found, queue, list, id, text = find_delivery(worker, field)
    if found then requeue_one(worker, push, found, queue, list, id, text) end
  end
end

-- requeue_all(worker): what the worker had fetched, from the youngest on, within the budget; true when nothing is left.
function requeue_all(worker)
  local unacked = P .. 'unacked:' .. worker
  while budget > 0 do
    local stored = call('ZREVRANGE', unacked, 0, 0)[1]
    if not stored then return true end
    local field, queue, list, id, text = parts(stored)
    if field then
      requeue_one(worker, 'RPUSH', field, queue, list, id, text)
    else -- written by somebody else
      call('HSET', P .. 'aside', 'delivery ' .. worker, stored)
      call('ZREM', unacked, stored)
    end
  end
  return call('EXISTS', unacked) == 0
end

-- drop(worker, fields): deliveries are acknowledged. A granted ticket whose message is dropped before it was admitted (its task
-- is unknown here, or it was revoked or expired on the way) gives back its slots.
function drop(worker, fields)
  for _, field in ipairs(fields) do
    local id = string.byte(field) == 63 and select(4, find_delivery(worker, field))
    local t = id and ticket(id)
    if t and t.kept == '' and (t.state == 'granted' or t.state == 'away') then
      free_slots(t)
      silence('grant', t.id)
      silence('forget', t.id)
      forget(t)
    end
    remove_delivery(worker, field)
  end
end
end
