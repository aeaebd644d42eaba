-- beat: a worker says that it lives, and what the configuration is.
--
-- KEYS  the namespace
-- ARGV  now, worker, lease, then the settings grant, forget, remember, refresh (all in microseconds; '' from one who has no
--       configuration), '' or 'renew'
-- Outcomes
--   renewed   the lease goes on
--   joined    a new lease: a worker that had one before has lost it, and what it ran counts for nothing any more
--   lost      there is no lease to renew, or tickets of an earlier life of this id are still being recovered:
--             join under another id
-- include base clock number pulse

tick()
local worker, lease = ARGV[2], tonumber(ARGV[3])
local had = call('ZSCORE', P .. 'leases', worker)
if not had and call('EXISTS', P .. 'dead:' .. worker, P .. 'unacked:' .. worker) > 0 then return { 'lost', '' } end
if ARGV[8] == 'renew' and not had then return { 'lost', '' } end
-- A Redis that is full refuses a script's first write, unless that needs no memory. A worker must not be taken for dead because of
-- that: others could still sweep.
call('HDEL', P .. 'pulse', '')
feel_pulse(lease, true)
call('ZADD', P .. 'leases', whole(now + lease), worker)
call('ZADD', P .. 'worker:' .. worker, 0, '!')
if ARGV[4] ~= '' then
  call('HSET', P .. 'config', 'lease', ARGV[3], 'grant', ARGV[4], 'forget', ARGV[5], 'remember', ARGV[6], 'refresh', ARGV[7])
end
return { had and 'renewed' or 'joined', '' }
