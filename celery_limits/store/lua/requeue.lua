-- requeue: deliveries go back to the queues that they came from, marked as redelivered.
--
-- KEYS  the namespace
-- ARGV  now, worker, 'front' or 'end', their fields
-- Returns  how many there were
-- include base clock number work unacked record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede delivery

tick()
call('ZREM', P .. 'unacked:' .. ARGV[2], '') -- a Redis that is full lets those go on that begin with a write which needs no memory
requeue_deliveries(ARGV[2], { unpack(ARGV, 4) }, ARGV[3] == 'front' and 'RPUSH' or 'LPUSH')
push_fronted()
return #ARGV - 3
