-- sift: of the messages that a worker has fetched, those whose first link has no room join its line, without a way through the
-- worker; their deliveries are done with.
--
-- KEYS  the namespace
-- ARGV  now, worker; then for each: field, task id, nonce, the rest of its record as for admit
-- Returns  the fields of those that stand in line now
-- include base clock number record hold rate walk note decode line ring alarm floating move wake delivery arrival stand

tick()
local standing = {}
for i = 3, #ARGV, 4 do
  local field = ARGV[i]
  local t = decode(ARGV[i + 1], ARGV[i + 2], 'waiting\t\t0\t0\t0\t1\t1\town\t\t' .. ARGV[i + 3])
  local text = t and delivered(ARGV[2], field) or ''
  if text ~= '' and stand(t, text) then
    call('HDEL', P .. 'unacked:' .. ARGV[2], field)
    standing[#standing + 1] = field
  end
end
drain()
ring_bell()
return standing
