-- cancel: a task must not run. Every ticket of the task that has not begun frees what it holds, and the id is remembered, so that
-- a message which turns up later is refused. What runs already runs on.
--
-- KEYS  the namespace
-- ARGV  now, task id, for how long the id is remembered, for how long the caller may take to settle (microseconds)
-- Outcome  cancelled; detail: how many run, then ticket, fence and message of each that ended here. The caller tells their result backend
--          and settles them; if it dies, whoever works off the outbox does.
-- include base clock number record hold rate walk note decode line ring alarm floating move wake seek payload

tick()
local task, running, ended = ARGV[2], 0, {}

local function withdraw(t)
  if t.state == 'waiting' then
    leave_line(t)
  elseif t.queue ~= '' then
    call('LREM', P .. 'ready:' .. t.queue, 1, t.id)
  end
  if t.kept == 'own' then
    finish(t, 'revoked')
    t.fence = serial()
    save(t)
    ended[#ended + 1] = t.id
    ended[#ended + 1] = t.fence
    ended[#ended + 1] = payload(t)
    call('ZADD', P .. 'outbox', whole(now + tonumber(ARGV[4])), t.id)
  else -- its message is with the broker, and will be refused
    let_go(t)
    silence('grant', t.id)
    silence('forget', t.id)
    call('ZREM', P .. 'outbox', t.id)
    forget(t)
  end
end

call('SET', P .. 'cancelled:' .. task, '1')
alarm('cancelled', task, now + tonumber(ARGV[3]))
for _, nonce in ipairs(call('HKEYS', P .. 'task:' .. task)) do
  if not string.find(nonce, ':', 1, true) then
    local t, record = ticket(task .. '.' .. nonce)
    if not t then
      set_aside(task .. '.' .. nonce, record, 'unreadable record')
    elseif t.state == 'running' then
      running = running + 1
    elseif t.state ~= 'ended' and t.state ~= 'finished' then
      withdraw(t)
    end
  end
end
outboxed = 0
return reply('cancelled', { running, unpack(ended) })
