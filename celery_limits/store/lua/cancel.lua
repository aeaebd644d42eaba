-- cancel: a task must not run. Every ticket of the task that has not begun frees what it holds, and the id is remembered, so that
-- a message which turns up later is refused. What runs already runs on.
--
-- KEYS  the namespace
-- ARGV  now, task id, for how long the id is remembered, for how long the caller may take to settle (microseconds), cursor ('0' first), the author as in
--       include/changes.lua
-- Outcome  cancelled; detail: the cursor for the next call, '0' when every ticket was seen; how many of these run; then ticket, fence
--          and message of each that ended here. The caller tells their result backend and settles them; if it dies, any other that
--          works off the outbox does.
-- include base clock number work record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede find_header payload delay changes

tick()
local task, running, ended = ARGV[2], 0, {}

local function withdraw(t)
  if t.state == 'waiting' then
    leave_line(t)
  elseif t.state == 'delayed' then
    leave_later(t)
  elseif t.queue ~= '' then
    call('ZREM', P .. 'ready:' .. t.queue, t.id)
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
    free_slots(t)
    silence('grant', t.id)
    silence('forget', t.id)
    call('ZREM', P .. 'outbox', t.id)
    forget(t)
  end
end

-- As many ids are remembered as a Celery worker remembers of revoked tasks; beyond that the one that lapses first is forgotten.
local MOST_REMEMBERED = 50000
local PAGE, MOST_BYTES = 4, 1024 * 1024 -- fields that are read at once, of which every other one may be a large message
call('SET', P .. 'cancelled:' .. task, '1')
call('ZADD', P .. 'remembered', whole(now + tonumber(ARGV[3])), task)
if call('ZCARD', P .. 'remembered') > MOST_REMEMBERED then
  call('DEL', P .. 'cancelled:' .. call('ZPOPMIN', P .. 'remembered')[1])
end

local function cancel(nonce, record)
  local t = decode(task, nonce, record)
  spend(10)
  if not t then
    set_aside(task .. '.' .. nonce, record, 'unreadable record')
  elseif t.state == 'running' then
    running = running + 1
  elseif t.state ~= 'ended' and t.state ~= 'finished' then
    withdraw(t)
  end
end

local cursor, flat, bytes = ARGV[5], {}, 0
repeat
  cursor, flat = unpack(call('HSCAN', P .. 'task:' .. task, cursor, 'COUNT', PAGE))
  for i = 1, #flat, 2 do
    bytes = bytes + #flat[i + 1]
    if not string.find(flat[i], ':', 1, true) then cancel(flat[i], flat[i + 1]) end
  end
until cursor == '0' or budget <= 0 or bytes > MOST_BYTES
outboxed = 0
if ARGV[5] == '0' and (running > 0 or ended[1]) then
  local author = read_author(6)
  if not was_recorded(author) then record_change(author, 'cancel', 'task ' .. task, '', ended[1] and 'revoked' or 'running') end
end
return reply('cancelled', { cursor, running, unpack(ended) })
