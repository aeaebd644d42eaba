-- take: a worker fetches granted messages from the front of a queue.
--
-- KEYS  the namespace
-- ARGV  now, worker, queue, how many
-- Outcome  taken; detail: ticket and message, in turn. They stay in the store until the worker admits them.
-- include base clock number record decode alarm payload

tick()
local worker, queue, taken = ARGV[2], P .. 'ready:' .. ARGV[3], {}
if not call('ZSCORE', P .. 'worker:' .. worker, '!') then return { 'lost', '' } end
for _ = 1, tonumber(ARGV[4]) do
  local id = call('LPOP', queue)
  if not id then break end
  local t = ticket(id)
  if t and t.kept == 'own' and (t.state == 'granted' or t.state == 'away') then
    t.worker = worker
    save(t)
    call('ZADD', P .. 'worker:' .. worker, t.arrival, id)
    if t.state == 'away' then alarm('grant', id, now + setting('grant')) end -- should the worker never ask for it
    taken[#taken + 1] = id
    taken[#taken + 1] = payload(t)
  end
end
return { 'taken', taken }
