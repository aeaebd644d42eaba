-- delay: a message with an eta waits in the store until it is due; or goes to its queue, as publish puts it there, where it is due within a
-- second or no worker of this namespace looks after delays.
--
-- KEYS  the namespace
-- ARGV  now; due and now, both by the sender's clock, in microseconds; queue, list, message; worker and field, of one that this worker has
--       fetched from its queue (then list and message are the delivery's own), else both ''; task id, nonce, the rest of its record as for
--       admit, whose field DELIVERY is written here, and its links
-- Returns  0 it is in its queue, or still with the worker; 1 it is delayed; 2 it has ended, since its task is revoked
-- include base clock number work unacked record hold rate walk serving note decode place newest fair followers line ring alarm floating move wake supersede delay delivery

tick()
local SOON = 1000000 -- microseconds; what is due earlier costs a worker next to nothing
local SECOND = 1000000
local due, queue, list, text, worker, field = tonumber(ARGV[2]), ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]

-- An eta is a date by the sender's clock, and is stored as a time of the namespace, which goes on when the server's clock is set back. Clocks
-- that agree to a second are taken as equal, and others as whole seconds apart, so that equal etas stay equal. What is due up to a second
-- too early for it waits in its worker.
local skew = now - tonumber(ARGV[3])
if math.abs(skew) > SECOND then due = due + math.floor(skew / SECOND) * SECOND end

local function as_ever()
  if field == '' then
    call('LPUSH', list, text)
    ring_for(queue)
  end
  return 0
end

if due <= now + SOON or call('HGET', P .. 'config', 'delays') ~= '1' then return as_ever() end
local t = decode(ARGV[9], ARGV[10], 'delayed\t\t0\t0\t0\t1\t1\town\t\t' .. ARGV[11])
if not t then return as_ever() end
if field ~= '' then
  local found, _, from, id, stored = find_delivery(worker, field)
  if not found or id ~= '' then return 0 end -- lost, or granted: its worker goes on with it
  list, text = from, stored
end
if call('HEXISTS', P .. 'task:' .. t.task, t.nonce) == 1 then
  return field == '' and t.n > 0 and 1 or as_ever() -- published twice; or a copy of what a gate knows already
end

t.delivery = whole(due) .. ' ' .. list
if field ~= '' then remove_delivery(worker, field) end
delay(t, text)
if call('EXISTS', P .. 'cancelled:' .. t.task) == 1 then
  leave_later(t)
  finish(t, 'revoked')
  soonest = now
  ring_bell()
  return 2
end
soonest = due
ring_bell()
return 1
