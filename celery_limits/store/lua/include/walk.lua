-- needs hold rate
-- The walker. Every grant goes through it: fresh delivery, freed slot, due rate, raised limit, recovery.
-- survey() only reads and take() only writes, so a walk that fails leaves no trace.

-- special_room(t, i, o) is in line.lua: it knows of notes (someone waits, or steers the key). Nil where no key has one.
local special_room

-- served(t, o, amount) is in fair.lua: the group of t got this much of the link at o. Nil where no key has a note.
local served

-- took(t, o) is in newest.lua: t has taken a slot of the link at o. Nil in the quick ways, which no chain goes that has such links.
local took

-- survey(t): the first link from its position on that has no room for t, or t.n + 1. Where that is a rate, t.due says when.
local function survey(t)
  local links, o = t.links, t.base + (t.at - 1) * WIDTH
  for i = t.at, t.n do
    local free
    t.due = nil
    if not HOLDS[links[o]] and i < t.reached then
      free = true -- passed before: no token is burnt twice
    elseif special_room then
      free = special_room(t, i, o)
    elseif links[o] == 'r' then
      free = conforms(t, i, tonumber(links[o + SIZE]), links[o + WEIGHT], tonumber(links[o + EXTRA]))
    else
      free = call('HLEN', P .. 'hold:' .. links[o + KEY]) + links[o + WEIGHT] <= tonumber(links[o + SIZE])
    end
    if not free then return i end
    o = o + WIDTH
  end
  return t.n + 1
end

-- take(t, stop): enters every link before stop.
local function take(t, stop)
  local links, o = t.links, t.base + (t.at - 1) * WIDTH
  for i = t.at, stop - 1 do
    local amount
    if HOLDS[links[o]] then
      amount = take_slot(links[o + KEY], t.id, links[o + WEIGHT])
      if took then took(t, o) end
    elseif links[o] == 'r' and i >= t.reached then
      call('ZADD', P .. 'rates', string.format('%.17g', t.tat[i]), links[o + KEY])
      amount = links[o + WEIGHT]
    end
    if served and amount then served(t, o, tonumber(amount)) end
    o = o + WIDTH
  end
  t.at = stop
  if stop > t.reached then t.reached = stop end
end
