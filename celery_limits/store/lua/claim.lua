-- claim: a worker takes on entries of the outbox: messages to publish to another broker, tickets whose end must be told.
--
-- KEYS  the namespace
-- ARGV  now, how many, for how long they are the caller's (microseconds), then ticket and fence, as claimed, of each that the
--       caller could not finish: it can be claimed at once
-- Outcome  claimed; detail: ticket, fence, 'send' or the reason of its end, message, in turn. Publish with confirm, or tell the result
--          backend; then settle. What is not settled in time is claimed again: at least once, and the ticket makes it once.
-- include base clock number work record decode find_header payload

tick()
for i = 4, #ARGV, 2 do
  local t = ticket(ARGV[i])
  if t and t.fence == ARGV[i + 1] and t.state ~= 'running' then call('ZADD', P .. 'outbox', 'XX', whole(now), t.id) end
end
local claimed, bytes = {}, 0
local MOST_BYTES = 1024 * 1024 -- of messages; one that begins below is taken whole
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'outbox', '-inf', whole(now), 'LIMIT', 0, tonumber(ARGV[2]))) do
  if bytes > MOST_BYTES then break end
  local t = ticket(id)
  if t and t.kept == 'own' then
    local ended = t.state == 'ended'
    t.fence = serial() -- while a ticket runs on no worker, its fence is that of whoever claimed it
    if not ended then t.sends = t.sends + 1 end
    save(t)
    claimed[#claimed + 1] = id
    claimed[#claimed + 1] = t.fence
    claimed[#claimed + 1] = ended and t.reason or 'send'
    claimed[#claimed + 1] = payload(t)
    bytes = bytes + #claimed[#claimed]
    call('ZADD', P .. 'outbox', whole(now + tonumber(ARGV[3])), id)
  else
    call('ZREM', P .. 'outbox', id)
  end
end
return { 'claimed', claimed }
