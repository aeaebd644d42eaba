-- needs arrival delay move
-- enter_queue(t, member): a delayed message that is due enters its queue, as if it were published now; a limited one gets its arrival here.
-- A key that is no list costs this message its way, and nothing else: it is set aside. Where this worker may not write to that queue (an
-- ACL), it is left to another for a second.
local AGAIN = 1000000
local function enter_queue(t, member)
  local text = message(t)
  local _, list = due_of(t)
  if not text or not list then return set_aside(t.id, encode(t), 'is delayed, but its message or its list is gone') end
  if t.n > 0 then text = numbered(t.id, text) end
  local pushed = redis.pcall('LPUSH', list, text)
  if type(pushed) == 'table' and pushed.err then
    if string.find(pushed.err, '^WRONGTYPE') then return set_aside(t.id, encode(t), pushed.err) end
    call('ZADD', LATER, whole(now + AGAIN), member)
    return
  end
  forget(t)
  ring_for(t.queue)
  spend(8 + #text / 1024)
end

-- enter_due(most): those that are due, in order, up to `most` of them and half of the budget: what else is due must not wait for them.
local function enter_due(most)
  local rest = budget / 2
  local due = call('ZRANGEBYSCORE', LATER, '-inf', whole(now), 'LIMIT', 0, most)
  for _, member in ipairs(due) do
    if budget <= rest then break end
    spend(2)
    call('ZREM', LATER, member)
    local id = string.sub(member, 18)
    local t, record = ticket(id)
    if t and t.state == 'delayed' then
      enter_queue(t, member)
    elseif record and not t then
      set_aside(id, record, 'unreadable record')
    end
  end
  if due[1] and call('ZCOUNT', LATER, '-inf', whole(now)) > 0 then more = 1 end
end
