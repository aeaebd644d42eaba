-- Deliveries: what a worker has fetched and not acknowledged is in the hash unacked:<worker>, field -> queue, the list it was
-- popped from, and the message, a line each. Fields are serial numbers, a dot, and the mark of the channel that fetched it; one
-- that begins with g is the message of a granted ticket, which is named between list and message.
local function parts(stored)
  local queue, list, id, from = string.match(stored, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n()')
  return queue, list, id, from and string.sub(stored, from)
end

-- delivered(worker, field): the message of a delivery, '' when it is not this worker's any more.
local function delivered(worker, field)
  local stored = call('HGET', P .. 'unacked:' .. worker, field)
  if not stored then return '' end
  local _, _, _, text = parts(stored)
  return text or ''
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
  local function number(field) return tonumber(string.match(field, '%d+')) or 0 end
  table.sort(fields, function(a, b) return number(a) > number(b) end)
end

-- not_begun(worker, field, id): the worker was handed this ticket with its message, running, and gives it back: it is granted, as
-- one that is fetched, and whoever gets the message picks it up. A spare goes on by itself, as after release(back).
local function not_begun(worker, field, id)
  local t = ticket(id)
  if not t or t.state ~= 'running' or t.worker ~= worker or t.delivery ~= field then return end
  call('ZREM', P .. 'worker:' .. worker, id)
  t.state, t.worker, t.fence = 'granted', '', 0
  if t.kept == 'spare' then
    t.kept = 'own'
    to_front(t)
  end
  save(t)
  alarm('grant', id, now + setting('grant'))
end

-- give_back(worker, fields, push): deliveries back to their queues: RPUSH to the front, in the order in which they were fetched,
-- LPUSH to the end.
local function give_back(worker, fields, push)
  local hash = P .. 'unacked:' .. worker
  youngest_first(fields)
  for _, field in ipairs(fields) do
    local stored = call('HGET', hash, field)
    if stored then
      local queue, list, id, text = parts(stored)
      if id ~= '' then not_begun(worker, field, id) end
      call(push, list, redelivered(text))
      call('HDEL', hash, field)
      ring_for(queue)
    end
  end
end

-- give_back_all(worker, batch): a batch of all that the worker had, from the youngest on; true when nothing is left.
local function give_back_all(worker, batch)
  local fields = call('HKEYS', P .. 'unacked:' .. worker)
  if #fields <= batch then
    give_back(worker, fields, 'RPUSH')
    return true
  end
  youngest_first(fields)
  give_back(worker, { unpack(fields, 1, batch) }, 'RPUSH')
  return false
end

-- drop(worker, fields): deliveries are acknowledged. A granted ticket whose message is dropped before it was admitted (its task
-- is unknown here, or it was revoked or expired on the way) gives back its slots.
local function drop(worker, fields)
  local hash = P .. 'unacked:' .. worker
  for _, field in ipairs(fields) do
    local asked = string.byte(field) == 63
    if asked then field = string.sub(field, 2) end
    local stored = asked and call('HGET', hash, field)
    local t = stored and ticket(select(3, parts(stored)))
    if t and t.kept == '' and (t.state == 'granted' or t.state == 'away') then
      let_go(t)
      silence('grant', t.id)
      silence('forget', t.id)
      forget(t)
    end
    call('HDEL', hash, field)
  end
end
