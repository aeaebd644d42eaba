-- acknowledge: deliveries are done with.
--
-- KEYS  the namespace
-- ARGV  now, worker, their fields as in include/unacked.lua
-- Returns  how many there were
-- include base unacked

local acked, plain = read_acked(3, #ARGV - 2)
if plain then return remove_deliveries(ARGV[2], acked) end

-- include clock number work record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede delivery

tick()
drop(ARGV[2], acked)
drain()
push_fronted()
ring_bell()
return #ARGV - 2
