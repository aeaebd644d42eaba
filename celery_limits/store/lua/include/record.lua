-- A ticket in a script is a table: its id, task and nonce, the fields of its record by name, and its links as a flat list, the
-- same whether they came as ARGV or from the record, so that the walker has one shape to walk. `base` is where they start in
-- that list; each is WIDTH values: kind (c, f, r), key, size, weight, extra. Extra is the longest line accepted (c), the burst
-- (r), or both the longest line and what refreshes the size (f).
local WIDTH, KEY, SIZE, WEIGHT, EXTRA = 5, 1, 2, 3, 4

-- One counter numbers arrivals and fences: it only grows, whatever the clock does.
local function serial()
  return call('INCR', P .. 'serial')
end
