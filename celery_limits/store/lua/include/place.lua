-- needs record
-- Where tickets wait: sorted sets line:<class>:<key> of ticket -> (rank, arrival). Tickets that declare the same size stand in
-- one class, so that the first of each class is all a grant must look at, however long the lines are. Those that name a group stand in
-- classes of their own, with a g before the name; include/fair.lua says who is the first there.
local RANK_SPAN = 2 ^ 45 -- arrivals below it, ranks up to 255 above it: together they fit a double
local NEWEST = RANK_SPAN - 1 -- the arrival of one that has none yet: behind all who wait

local function order(t)
  return t.rank * RANK_SPAN + t.arrival
end

-- group_of(t, o): the group that the link at o names, and its share; nil for one that names none.
local function group_of(t, o)
  local extra = t.links[o + EXTRA]
  if not string.find(extra, '|', 1, true) then return nil end
  local _, share, group = split_extra(extra)
  return group, share
end

local function class_of(t, o)
  local kind, extra = t.links[o], t.links[o + EXTRA]
  local own, _, group = split_extra(extra)
  local class = kind .. ':' .. t.links[o + SIZE]
  if kind == 'r' then class = class .. ':' .. own end
  return group and 'g' .. class or class
end

-- is_fair(class): is it one of those that name a group?
local function is_fair(class)
  return string.byte(class) == 103
end

-- A grant looks at the first of each class, so a key has few of them. Those who declare yet another size stand in one line together,
-- the class MIXED, in which nobody passes anybody.
local MOST_CLASSES, MIXED = 16, 'm'

local function mixed(class)
  return is_fair(class) and 'g' .. MIXED or MIXED
end

local function is_mixed(class)
  return class == MIXED or class == 'g' .. MIXED
end

local function line(class, key)
  return P .. 'line:' .. class .. ':' .. key
end

-- classes(special): the classes in which anyone waits at the key of this note.
local function classes(special)
  local found = {}
  for field in pairs(special or {}) do
    local class = string.match(field, '^class:(.*)')
    if class then found[#found + 1] = class end
  end
  return found
end

-- waited(special): does anyone wait at the key of this note?
local function waited(special)
  return classes(special)[1] ~= nil
end
