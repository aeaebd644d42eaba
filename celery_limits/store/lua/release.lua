-- release: what ran has ended, or goes back to its queue.
--
-- KEYS  the namespace
-- ARGV  now, task id, nonce, worker, fence, 'done' or 'back' (the worker returns the message to the broker itself)
-- Outcomes
--   released   '' or 'kept'   kept: the store has the message too, and goes on with it by itself
--   corrupt    why            its record can't be read: nothing was changed
--   stale                     this admission holds nothing any more: nothing was changed, nobody woken
-- include base hold

local task, nonce, worker, fence, back = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6] == 'back'
local record = call('HGET', P .. 'task:' .. task, nonce)
local mine = 'running\t' .. worker .. '\t' .. fence .. '\t'
if not record or string.sub(record, 1, #mine) ~= mine then return { 'stale', '' } end
local id = task .. '.' .. nonce

-- A ticket that was sent once or never leaves nothing behind; the links of its record say which slots to free.
local sends = string.sub(record, #mine + 1, #mine + 2)
local chain = string.find(record, '\n', #mine, true)
local simple = false
local keys, weights, notes, n = {}, {}, {}, 0
if chain and not back and (sends == '0\t' or sends == '1\t') then
  local text = string.sub(record, chain + 2)
  for kind, key, weight, past in string.gmatch(text, '([cfr])\t([^\t]+)\t[^\t]+\t(%d+)\t[^\t]*\t()') do
    simple = past > #text -- the links fill the record to its end, or it is not one to go by
    if kind ~= 'r' then
      n = n + 1
      keys[n], weights[n], notes[n] = key, weight, P .. 'note:' .. key
    end
  end
end
if simple then
  for i = 1, n do
    hold('SREM', keys[i], id, weights[i])
  end
  call('HDEL', P .. 'task:' .. task, nonce, nonce .. ':m')
  call('ZREM', P .. 'worker:' .. worker, id)
  if n == 0 or call('EXISTS', unpack(notes)) == 0 then return 0 end -- a number says `released`, and nobody woken
end

-- From here on the long way: somebody may wait for what was freed, or the ticket is not forgotten.
-- include clock number record rate walk note decode line ring alarm floating move wake

tick()
if simple then
  freed = keys
  return reply('released')
end

local t = decode(task, nonce, record)
if not t then return { 'corrupt', 'unreadable record' } end
call('ZREM', P .. 'worker:' .. worker, id)
if not back then
  let_go(t)
  forget(t)
  if t.sends > 1 then -- a second copy may be under way: it must find that the first has run
    t.state, t.kept = 'finished', ''
    alarm('forget', t.id, now + setting('remember'))
    save(t)
  end
  return reply('released')
end
-- A spare goes on even though the worker returns its own copy: that may be the very message which came as the spare. Whichever
-- comes second finds the other and is dropped.
if t.kept == 'spare' then t.kept = 'own' end
go_away(t, setting('forget'))
if t.kept == '' then return reply('released') end
if t.queue ~= '' then to_front(t) else into_outbox(t) end
return reply('released', 'kept')
