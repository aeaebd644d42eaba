-- ring: there may be something to fetch from a queue.
--
-- KEYS  the namespace
-- ARGV  now, queue
-- include base ring

ring_for(ARGV[2])
return 1
