-- beat: a worker says that it lives, and what the configuration is.
--
-- KEYS  the namespace
-- ARGV  now, worker, lease, then the settings grant, forget, remember, refresh (all in microseconds) and trust ('0': only a gate can tell
--       a chain); all '' from a process that has no configuration; then '' or 'renew', a secret for a
--       namespace that has none, and '1' from a worker that looks after delayed messages;
--       then what the worker serves: '' if it does not say, '=' if that is as before, or the places of its pool, '1' if it is stalled or
--       '', and the queues that it consumes, in order
-- Outcomes
--   renewed   the lease goes on
--   joined    a new lease: a worker that had one before has lost it, and what it ran counts for nothing any more
--   lost      there is no lease to renew, or tickets of an earlier life of this id are still being recovered:
--             join under another id
-- include base clock number alarm pulse serving report

tick()
local worker, lease = ARGV[2], tonumber(ARGV[3])
local had = call('ZSCORE', P .. 'leases', worker)
if not had and call('EXISTS', P .. 'dead:' .. worker, P .. 'unacked:' .. worker) > 0 then return { 'lost', '' } end
if ARGV[9] == 'renew' and not had then return { 'lost', '' } end
-- A Redis that is full refuses a script's first write, unless that needs no memory. A worker must not be taken for dead because of
-- that: others could still sweep.
call('HDEL', P .. 'pulse', '')
keep_time()
feel_pulse(lease, true)
call('ZADD', P .. 'leases', whole(now + lease), worker)
call('ZADD', P .. 'worker:' .. worker, 0, '!')
if ARGV[4] ~= '' then
  call('HSET', P .. 'config', 'lease', ARGV[3], 'grant', ARGV[4], 'forget', ARGV[5], 'remember', ARGV[6], 'refresh', ARGV[7],
    'trust', ARGV[8])
end
call('HSETNX', P .. 'config', 'seal', ARGV[10])
if ARGV[11] == '1' then call('HSET', P .. 'config', 'delays', '1') end
if ARGV[12] ~= '=' then
  local entry
  if (ARGV[12] or '') ~= '' then
    entry = table.concat({ ARGV[12] .. (ARGV[13] == '1' and ' 0' or ' 1'), unpack(ARGV, 14) }, '\n')
  end
  report(worker, entry)
  ring_bell()
end
return { had and 'renewed' or 'joined', '' }
