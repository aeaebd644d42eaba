-- acknowledge: deliveries are done with.
--
-- KEYS  the namespace
-- ARGV  now, worker, their fields as in include/unacked.lua
-- Returns  how many there were
-- include base unacked

local acked, plain = read_acked(3, #ARGV - 2)
if plain then return call('HDEL', P .. 'unacked:' .. ARGV[2], unpack(acked)) end

-- include clock number record hold rate walk note decode line ring alarm floating move wake delivery

tick()
drop(ARGV[2], acked)
drain()
push_fronted()
ring_bell()
return #ARGV - 2
