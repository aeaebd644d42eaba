-- needs base
-- A ticket in a script is a table: its id, task and nonce, the fields of its record by name, and its links as a flat list, the
-- same whether they came as ARGV or from the record, so that the walker has one shape to walk. `base` is where they start in
-- that list; each is WIDTH values: kind (c, f, r, d, w), key, size, weight, extra. The size of w is the queue whose workers' places
-- count, with % and : written as %25 and %3A. Extra is the longest line accepted (c, w), the burst
-- (r), or both the longest line and what refreshes the size (f); behind the longest line, ~ for on_full="replace" and ! for "preempt". Of a
-- debounce (d) the size is its quiet time, and extra the longest time since the first, k for one that is never superseded. In place of the longest line
-- + says that the task has begun before, as a retry has: it accepts any line, and no line is longer for it. A link that names a group has "|<share>|<group>" behind that; no other
-- has a bar in it.
local WIDTH, KEY, SIZE, WEIGHT, EXTRA = 5, 1, 2, 3, 4
local HOLDS = { c = true, f = true, w = true } -- the kinds of which a ticket has a slot until it ends

-- split_extra(extra): what the kind of the link has there, and the share and the group, nil for a link that names none.
local function split_extra(extra)
  local own, share, group = string.match(extra, '^([^|]*)|([^|]*)|(.*)$')
  return own or extra, tonumber(share), group
end

-- One counter numbers arrivals and fences: it only grows, whatever the clock does.
local function serial()
  return call('INCR', P .. 'serial')
end
