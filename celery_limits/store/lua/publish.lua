-- publish: a message into its queue; or, where it is limited and its first link has no room, straight into that line.
--
-- KEYS  the namespace
-- ARGV  now, queue, list, message; then, where it is limited and may start at once: task id, nonce, the rest of its record as for
--       admit, and its links as in include/record.lua
-- Returns  0 in the queue, 1 in the line
-- include base ring record seek arrival

local queue, list, text = ARGV[2], ARGV[3], ARGV[4]

local function enqueue()
  call('LPUSH', list, text)
  ring_for(queue)
  return 0
end

local L = 8
if #ARGV < L then return enqueue() end
text = numbered(text)
local quick = ARGV[L] == 'c' and call('EXISTS', P .. 'note:' .. ARGV[L + KEY]) == 0
if quick and call('SCARD', P .. 'hold:' .. ARGV[L + KEY]) + ARGV[L + WEIGHT] <= tonumber(ARGV[L + SIZE]) then
  return enqueue()
end

-- include clock number hold rate walk note decode line alarm floating move wake stand

tick()
local t = decode(ARGV[5], ARGV[6], 'waiting\t\t0\t0\t0\t1\t1\town\t\t' .. ARGV[7])
if not t or not stand(t, text) then return enqueue() end
ring_bell()
return 1
