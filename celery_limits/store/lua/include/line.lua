-- Keys that may have room, or a way past one who left, when the script ends: wake.lua works them off.
local freed = {}

-- The lines of waiters: sorted sets line:<class>:<key> of ticket -> (rank, arrival). Tickets that declare the same size stand in
-- one class, so that the first of each class is all a grant must look at, however long the lines are.
local RANK_SPAN = 2 ^ 45 -- arrivals below it, ranks up to 255 above it: together they fit a double
local NEWEST = RANK_SPAN - 1 -- the arrival of one that has none yet: behind all who wait

local function order(t)
  return t.rank * RANK_SPAN + t.arrival
end

local function class_of(t, o)
  if t.links[o] == 'r' then return 'r:' .. t.links[o + SIZE] .. ':' .. t.links[o + EXTRA] end
  return t.links[o] .. ':' .. t.links[o + SIZE]
end

local function line(class, key)
  return P .. 'line:' .. class .. ':' .. key
end

-- heads(key, special): the first of each class, in order: { id, order, class }. They are kept beside the note, and go with it.
local ranked = setmetatable({}, { __mode = 'k' })
local function heads(key, special)
  local found = ranked[special]
  if found then return found end
  found = {}
  for field in pairs(special) do
    local class = string.match(field, '^class:(.*)')
    local first = class and call('ZRANGE', line(class, key), 0, 0, 'WITHSCORES')
    if first and first[1] then
      found[#found + 1] = { id = first[1], order = tonumber(first[2]), class = class }
    end
  end
  table.sort(found, function(a, b) return a.order < b.order end)
  ranked[special] = found
  return found
end

-- A waiter ahead bars the way unless its own size is what holds it: one who declares a larger size on the same key passes
-- those who wait for a smaller one, and a rate of 0 bars nobody. Nobody passes a waiter of its own class or a larger one.
local function blocked(t, o, special)
  local mine, kind = order(t), t.links[o]
  for _, head in ipairs(heads(t.links[o + KEY], special)) do
    if head.order >= mine then return false end
    local theirs, size = string.match(head.class, '^(%a):([^:]*)')
    if kind == 'r' or theirs == 'r' then
      if paced(size, '1', special) ~= 0 then return true end
    elseif sized(theirs, size, special) >= sized(kind, t.links[o + SIZE], special) then
      return true
    end
  end
  return false
end

-- waited(special): does anyone wait at the key of this note?
local function waited(special)
  for field in pairs(special or {}) do
    if string.find(field, '^class:') then return true end
  end
  return false
end

-- special_room: room at a link whose key may have a note.
special_room = function(t, i, o)
  local kind, key, weight = t.links[o], t.links[o + KEY], t.links[o + WEIGHT]
  local special = note(key)
  if special and (special.paused or blocked(t, o, special)) then return false end
  if kind ~= 'r' then return used(key) + weight <= sized(kind, t.links[o + SIZE], special) end
  local interval, burst = paced(t.links[o + SIZE], t.links[o + EXTRA], special)
  return conforms(t, i, interval, weight, math.max(burst, weight)) -- a steered burst below its cost would bar it for ever
end

local function waiting(key, special)
  local n = 0
  for field in pairs(special or {}) do
    local class = string.match(field, '^class:(.*)')
    if class then n = n + call('ZCARD', line(class, key)) end
  end
  return n
end

-- behind(class, key, mine): does one who joins there change nothing that this script has read of the key?
local function behind(class, key, mine)
  for _, head in ipairs(as_read[key] and ranked[as_read[key]] or {}) do
    if head.class == class then return head.order < mine end
  end
  return false
end

local function join_line(t)
  local o = at(t, t.at)
  local class, key = class_of(t, o), t.links[o + KEY]
  call('ZADD', line(class, key), whole(order(t)), t.id)
  if not behind(class, key, order(t)) then write_note('HSET', key, 'class:' .. class, '1') end
end

-- strike(class, key, id): takes a member out of a line; the last one takes the line's traces along.
local function strike(class, key, id)
  call('ZREM', line(class, key), id)
  as_read[key] = nil
  if call('EXISTS', line(class, key)) == 1 then return end
  write_note('HDEL', key, 'class:' .. class)
  if not waited(note(key)) then write_note('HDEL', key, 'pace', 'paced') end
end

-- leave_line(t): whoever stood behind it may be able to go now.
local function leave_line(t)
  local o = at(t, t.at)
  strike(class_of(t, o), t.links[o + KEY], t.id)
  freed[#freed + 1] = t.links[o + KEY]
end
