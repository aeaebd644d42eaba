-- acknowledge: deliveries are done with.
--
-- KEYS  the namespace
-- ARGV  now, worker, their fields
-- Returns  how many there were
-- include base

local unacked, plain = P .. 'unacked:' .. ARGV[2], true
for i = 3, #ARGV do
  plain = plain and string.sub(ARGV[i], 1, 1) ~= 'g'
end
if plain then return call('HDEL', unacked, unpack(ARGV, 3)) end

-- include clock number record hold rate walk note decode line ring alarm floating move wake delivery

tick()
drop(ARGV[2], { unpack(ARGV, 3) })
drain()
push_fronted()
ring_bell()
return #ARGV - 2
