-- publish: a message into its queue; or, where it is limited and its first link has no room, straight into that line.
--
-- KEYS  the namespace
-- ARGV  now, queue, list, message; then, where it is limited and may start at once: task id, nonce, the rest of its record as for
--       admit, and its links as in include/record.lua
-- Returns  0 in the queue, 1 in the line
-- include base ring record find_header seal arrival

local queue, list, text = ARGV[2], ARGV[3], ARGV[4]

local function enqueue()
  call('LPUSH', list, text)
  ring_for(queue)
  return 0
end

local L = 8
if #ARGV < L then return enqueue() end
local id = ARGV[5] .. '.' .. ARGV[6]
text = numbered(id, text)
local quick = ARGV[L] == 'c' and call('EXISTS', P .. 'note:' .. ARGV[L + KEY]) == 0
if quick and call('HLEN', P .. 'hold:' .. ARGV[L + KEY]) + ARGV[L + WEIGHT] <= tonumber(ARGV[L + SIZE]) then
  return enqueue()
end

-- include clock number work hold rate walk serving note decode place newest fair followers begun line alarm floating stopped move wake supersede park_early

tick()
local t = decode(ARGV[5], ARGV[6], 'waiting\t\t0\t0\t0\t1\t1\town\t\t' .. ARGV[7])
local header, _, at = find_header(text)
if not t or not park_early(t, text, header and claim_in(header, at) or '') then return enqueue() end
ring_bell()
return 1
