-- needs begun fair followers newest
-- The first of each line, who may pass whom, and how a ticket joins and leaves. include/place.lua says what the lines are.
local heads, waiting, standing, join_line, strike, leave_line
do

-- heads(key, special, assumed): the first of each class, in turn: { id, order, class }, and where groups take turns also group and turn.
-- They are kept beside the note, and go with it. `assumed`: as if this were the fair state of the key, which has none yet.
local ranked = setmetatable({}, { __mode = 'k' })
function heads(key, special, assumed)
  local found = not assumed and ranked[special]
  if found then return found end
  local f, plain = assumed or fair.state(special), nil
  found = {}
  for _, class in ipairs(classes(special)) do
    local head = { class = class }
    if f and is_fair(class) then
      head.id, head.order, head.group, head.turn = fair.first_of(class, key)
    else
      local first = call('ZRANGE', line(class, key), 0, 0, 'WITHSCORES')
      head.id, head.order = first[1], tonumber(first[2])
    end
    if f and head.id and not head.turn then
      plain = plain or fair.ungrouped(key, f, special)
      head.turn = fair.turn_at(f, plain, 1, math.floor(head.order / RANK_SPAN), head.order % RANK_SPAN)
    end
    if head.id then found[#found + 1] = head end
  end
  spend(2 + #found)
  table.sort(found, function(a, b)
    if f then return fair.comes_before(a.turn, b.turn) end
    return a.order < b.order
  end)
  if not assumed then ranked[special] = found end
  return found
end

-- passes_by(t, o, head, special): may one who stands behind this head go before it? Only where its own size is what holds the head: one who
-- declares a larger size on the same key passes those who wait for a smaller one, and a rate of 0 bars nobody.
local function passes_by(t, o, head, special)
  if is_mixed(head.class) then return false end
  local kind = t.links[o]
  local theirs, size = string.match(head.class, '^g?(%a):([^:]*)')
  if theirs == 'd' then return true end
  if kind == 'r' or theirs == 'r' then return paced(size, '1', special) == 0 end
  return sized(theirs, size, special) < sized(kind, t.links[o + SIZE], special)
end

-- A waiter whose turn comes before bars the way of those of its own class or a smaller one.
local function blocked(t, o, special)
  local key, group = t.links[o + KEY], group_of(t, o)
  local f = fair.state(special)
  local assumed = not f and group and fair.first_state(t.links[o], key, special, 0) or nil
  local in_force = f or assumed
  local mine = in_force and fair.turn_of(t, o, in_force, special) or order(t)
  for _, head in ipairs(heads(key, special, assumed)) do
    if in_force then
      if not fair.comes_before(head.turn, mine) then return false end
    elseif head.order >= mine then
      return false
    end
    if not passes_by(t, o, head, special) then return true end
  end
  return false
end

-- special_room: room at a link whose key may have a note.
special_room = function(t, i, o)
  local kind, key, weight = t.links[o], t.links[o + KEY], t.links[o + WEIGHT]
  local special = note(key)
  spend(3)
  if kind == 'd' then return not (special and special.paused) and newest.debounced(t, i, special) end
  if special and (special.paused or blocked(t, o, special)) then return false end
  if kind ~= 'r' then return used(key) + weight <= sized(kind, t.links[o + SIZE], special) end
  local interval, burst = paced(t.links[o + SIZE], split_extra(t.links[o + EXTRA]), special)
  return conforms(t, i, interval, weight, math.max(burst, weight)) -- a steered burst below its cost would bar it for ever
end

function waiting(key, special)
  local n = 0
  for _, class in ipairs(classes(special)) do
    n = n + call('ZCARD', line(class, key))
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

-- class_for(class, special): the class in which one of this size joins: its own, unless the key has as many as it may have.
local function class_for(class, special)
  local taken = classes(special)
  if #taken < MOST_CLASSES or special['class:' .. class] then return class end
  return mixed(class)
end

-- standing(class, key, id): the class in which a waiter of this size stands, its own or the mixed one; nil where it is in neither.
function standing(class, key, id)
  if call('ZSCORE', line(class, key), id) then return class end
  return call('ZSCORE', line(mixed(class), key), id) and mixed(class) or nil
end

function join_line(t)
  local o = at(t, t.at)
  local key = t.links[o + KEY]
  local class = class_for(class_of(t, o), note(key))
  call('ZADD', line(class, key), whole(order(t)), t.id)
  begun.join(t, o)
  if t.links[o] == 'w' then followers.join(t.links[o + SIZE], key) end
  if is_fair(class) then return fair.join(t, o, class) end
  fair.join_ungrouped(key, note(key))
  if not behind(class, key, order(t)) then write_note('HSET', key, 'class:' .. class, '1') end
end

-- strike(class, key, id, group): takes a member out of a line, and out of its group; the last one takes the line's traces along.
function strike(class, key, id, group)
  begun.leave(key, id)
  call('ZREM', line(class, key), id)
  if group and is_fair(class) then fair.leave(class, key, group, id) end
  as_read[key] = nil
  if call('EXISTS', line(class, key)) == 1 then return end
  write_note('HDEL', key, 'class:' .. class)
  local special = note(key)
  if waited(special) then return end
  if special then write_note('HDEL', key, 'pace', 'paced', 'preempt', 'd.first', 'd.due') end
  local f = fair.state(special)
  if f and f.kind == 'r' then fair.forget(key) end
end

-- leave_line(t): those behind it may be able to go on now.
function leave_line(t)
  local o = at(t, t.at)
  local class, key = class_of(t, o), t.links[o + KEY]
  local special = note(key)
  if special and special['class:' .. mixed(class)] then class = standing(class, key, t.id) or class end
  strike(class, key, t.id, (group_of(t, o)))
  if t.links[o] == 'w' then followers.leave(t.links[o + SIZE], key, note(key)) end
  newest.leave(t, o)
  freed[#freed + 1] = key
end
end
