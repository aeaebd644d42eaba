-- admit: a delivered message asks to run. Called where a pool place is free.
--
-- KEYS  the namespace
-- ARGV  now, task id, nonce, worker, when it expires or '', message, the rest of its record (rank, delivery, queue, expires,
--       since, late, cut, links), the field of its delivery in unacked:<worker> or '' (then no message is passed: it is there,
--       and what is parked or dropped is acknowledged in the same step), what it claims of its arrival as in include/seal.lua,
--       flags (n: by its header it never came out of the store; r: this worker has resolved the links itself, and they are in
--       force whatever the record says; g: a link names a group, or its size follows the workers; w: the newest wins at a link; at the end,
--       s and a seal: a worker says that the task has begun), then its links as in include/record.lua
-- Outcomes, each with its detail
--   admitted   fence             all slots are held; the body may run on this worker. One that has waited: { fence, the lines it
--                                stood in as in include/decode.lua, microseconds since it was granted or '' }
--   parked     link (from 1)     the store has the message: acknowledge the delivery. Parked just now: { link, its place in the line, or in
--                                its group's, how many wait there }
--   full       link              no room, and no message was passed to park: nothing was written, call again with it
--   duplicate                    the store or a live worker has this ticket already, or the delivery is not this worker's any
--                                more: acknowledge and drop it
--   revoked, expired, discarded  it will not run: acknowledge, and tell its result backend. Discarded: the link (from 1)
--   superseded  task id          likewise: that task, which came later, runs or waits in its place
--   corrupt    why               its record can't be read: nothing was written
--   lost                         this worker holds no lease: nothing was written, beat first
-- include base clock record hold rate walk unacked seal

local task, nonce, worker, expires, rest = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[7]
local t = { id = task .. '.' .. nonce, at = 1, reached = 1, base = 11, n = (#ARGV - 10) / WIDTH, links = ARGV }
local name = P .. 'task:' .. task

if t.n < 1 or t.n % 1 ~= 0 then return { 'corrupt', 'no links' } end -- which never means no limits
if not call('ZSCORE', P .. 'worker:' .. worker, '!') then return { 'lost', '' } end
local record = call('HGET', name, nonce)
local notes, floating = { P .. 'cancelled:' .. task }, false
for i = 1, t.n do
  local o = 6 + i * WIDTH
  notes[i + 1] = P .. 'note:' .. ARGV[o + KEY]
  floating = floating or ARGV[o] == 'f'
end
local in_time = expires == '' or tonumber(expires) > wall()
local field, flags = ARGV[8], ARGV[10]
local here = field == '' or has_delivery(worker, field) -- else it was given to another since, or has been parked
local plain = not record and not floating and not string.find(flags, '[gw]')
if in_time and here and plain and call('EXISTS', unpack(notes)) == 0 and survey(t) > t.n then
  local fence, past = serial(), t.n + 1
  take(t, past)
  local came = sealed_arrival(t.id, ARGV[9]) or fence
  local head = 'running\t' .. worker .. '\t' .. fence .. '\t0\t' .. came .. '\t' .. past .. '\t' .. past .. '\t\t\t'
  call('HSET', name, nonce, head .. rest)
  call('ZADD', P .. 'worker:' .. worker, fence, t.id)
  return fence -- a number says `admitted` without the cost of a table
end

-- From here on the long way: somebody waits, something is steered, or the ticket is known.
-- include number work serving note decode place newest fair followers begun line standing ring alarm floating stopped move wake supersede delivery

tick()
t = decode(task, nonce, 'running\t' .. worker .. '\t0\t0\t0\t1\t1\t\t\t' .. rest)
if not t then return { 'corrupt', 'unreadable arguments' } end
t.message, t.arrival = ARGV[6], math.min(tonumber(sealed_arrival(t.id, ARGV[9])) or NEWEST, NEWEST)
local seal = string.match(flags, 's(%x+)$')
-- The seal is of the ticket as it was published, without the mark of a queue; see store/begun.py.
if seal and seal == seal_of(string.gsub(t.id, '%-%x%x%x%x%x%x%x%x$', ''), 'begun') then begun.mark(t) end
if field ~= '' then t.message = select(5, find_delivery(worker, field)) or '' end

-- accept(answer): the store has the message now, so the delivery is done with.
local function accept(answer)
  if field ~= '' then remove_delivery(worker, field) end
  return answer
end

-- run(): the one way into `running`, for those that do not get there by the quick way.
local function run()
  t.state, t.fence, t.since = 'running', serial(), whole(wall())
  if t.arrival == NEWEST then t.arrival = t.fence end
  take(t, t.n + 1)
  save(t)
  call('ZADD', P .. 'worker:' .. t.worker, t.fence, t.id)
end

-- refreshes(): floating keys of this chain that are stale and that nobody refreshes, claimed for this worker.
local function refreshes()
  local asked = {}
  for o = 1, #t.links, WIDTH do
    local special = t.links[o] == 'f' and note(t.links[o + KEY])
    if t.links[o] == 'f' and not fresh(special) and not claimed(special) then
      floats(t, o)
      asked[#asked + 1] = ask(t.links[o + KEY], note(t.links[o + KEY]), t.worker)
    end
  end
  return asked
end

-- refuse(outcome, detail): the ticket will not run and leaves no trace.
local function refuse(outcome, detail)
  if record then
    free_slots(t)
    silence('grant', t.id)
    silence('forget', t.id)
    call('ZREM', P .. 'outbox', t.id)
    call('ZREM', P .. 'worker:' .. worker, t.id)
    forget(t)
  end
  return reply(outcome, detail)
end

local function refuse_late(by)
  newest.trail(t, by)
  return refuse('superseded', by)
end

-- known(): what a delivery means to a ticket the store has met before; nil when it goes on as the ticket's own message.
local function known(old)
  local again = old.delivery == t.delivery -- the same call once more, since its answer was lost
  local state = old.state
  if state == 'running' then
    if not here then return { 'duplicate', '' } end -- even if it asks again: it went back, and whoever gets it next runs it
    if again then return { 'admitted', tonumber(old.fence) } end
    if old.kept == '' and t.message == '' then return { 'full', 1 } end -- it is kept as the spare: it must be passed
    if old.kept == '' then
      call('HSET', P .. 'task:' .. t.task, t.nonce .. ':m', t.message)
      old.kept, old.cut = 'spare', t.cut
      save(old)
    end
    return accept({ 'duplicate', '' })
  end
  if state == 'waiting' then return accept({ again and 'parked' or 'duplicate', again and old.at or '' }) end
  if state == 'ended' or state == 'finished' then return accept({ 'duplicate', '' }) end
  -- The copy that was parked may come again, or a call of its time: the store has the message, or has sent it, and that one comes.
  local parked = again or (string.find(flags, 'n', 1, true) and old.queue == '')
  if parked and (old.kept == 'own' or old.sends > 0) then return accept({ 'duplicate', '' }) end
  -- What the store has sent may come while it still has the message.
  if old.kept == 'own' and (old.sends == 0 or old.queue ~= '') then return accept({ 'duplicate', '' }) end
end

-- rebind(to): the ticket, recorded with another chain, walks that of `to` from its start. Surveyed before anything is written, since a key
-- of another type must fail first.
local function rebind(to)
  survey(to)
  free_slots(t)
  t.links, t.n, t.reached, t.waits = to.links, to.n, 1, ''
end

local resolved
if record then
  local old = decode(t.task, t.nonce, record)
  if not old then return { 'corrupt', 'unreadable record' } end
  local answer = known(old)
  if answer then return answer end
  old.message, old.worker, old.delivery, old.late = t.message, t.worker, t.delivery, t.late
  if old.kept == '' then old.cut = t.cut end
  resolved = string.find(flags, 'r', 1, true) and t
  t = old
end
if not here then return { 'duplicate', '' } end
if call('EXISTS', P .. 'cancelled:' .. t.task) == 1 then return refuse('revoked') end
if newest.successor(t) then return refuse_late(newest.successor(t)) end
if expiry.passed(t) then return refuse('expired') end

if resolved and table.concat(resolved.links, '\t') ~= table.concat(t.links, '\t') then
  if t.message == '' and t.kept == '' then return { 'full', 1 } end -- it may have to be parked anew: it must be passed
  rebind(resolved)
end
local stop = survey(t)
local by = newest.late(t, stop)
if by then return refuse_late(by) end
if stop <= t.n and full(t, stop) then return refuse('discarded', stop) end
if stop <= t.n and t.message == '' and t.kept == '' then return { 'full', stop } end

if stop <= t.n then -- read what parking will write: a key of another type must fail before the first write
  local o = at(t, stop)
  call('ZSCORE', line(class_of(t, o), t.links[o + KEY]), t.id)
  call('ZSCORE', P .. 'alarms', t.id)
end
if stop <= t.n and newest.pass_due(t, stop) then stop = survey(t) end -- they may have taken what was free before that link
if record then
  silence('grant', t.id)
  silence('forget', t.id)
  call('ZREM', P .. 'outbox', t.id)
end
if stop > t.n then
  -- What the broker will hand out again, or nobody will, need not be kept; the store's own copy is, until the body has ended.
  if t.kept ~= '' and (t.late ~= '1' or t.queue == '') then
    call('HDEL', P .. 'task:' .. t.task, t.nonce .. ':m')
    t.kept = ''
  end
  local waits, granted = t.waits, record and t.state == 'granted' and whole(now - (tonumber(t.since) or now)) or ''
  t.waits = ''
  run()
  if waits == '' and granted == '' then return reply('admitted', t.fence, refreshes()) end
  return reply('admitted', { t.fence, waits, granted }, refreshes())
end
if t.arrival == NEWEST then t.arrival = serial() end
if t.kept == '' then
  call('HSET', P .. 'task:' .. t.task, t.nonce .. ':m', t.message)
  t.kept = 'own'
end
take(t, stop)
park(t)
call('ZREM', P .. 'worker:' .. worker, t.id)
t.worker = worker
local o = at(t, stop)
local place, all = place_in_group(t, o, note(key_at(t)))
if not place then place, all = place_in_line(t, o, note(key_at(t))) end
return accept(reply('parked', { stop, place, all }, refreshes()))
