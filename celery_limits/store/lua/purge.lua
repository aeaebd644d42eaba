-- purge: tickets of a queue whose message is in the store end without a word, as the messages of a purged queue do.
--
-- KEYS  the namespace
-- ARGV  now, queue, names of task hashes
-- Returns  how many there were
-- include base clock number record hold rate walk note decode line ring alarm floating move wake

tick()
local queue, purged = ARGV[2], 0
for i = 3, #ARGV do
  local task = string.sub(ARGV[i], #P + 6)
  local flat = call('HGETALL', ARGV[i])
  for j = 1, #flat, 2 do
    local t = not string.find(flat[j], ':', 1, true) and decode(task, flat[j], flat[j + 1])
    if t and t.queue == queue and t.kept == 'own' and t.state ~= 'running' and t.state ~= 'ended' then
      if t.state == 'waiting' then leave_line(t) else call('LREM', P .. 'ready:' .. queue, 0, t.id) end
      let_go(t)
      for _, what in ipairs({ 'expire', 'grant', 'forget' }) do
        silence(what, t.id)
      end
      forget(t)
      purged = purged + 1
    end
  end
end
drain()
push_fronted()
ring_bell()
return purged
