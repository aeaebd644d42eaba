-- needs wake
-- Deadlocks that only show at run time: tickets each of which holds what another one waits for. A ticket that parks while it may be one of
-- them sets the alarm knot|<key> (may_be_stuck in include/move.lua); the sweep that rings it looks here, and unties all of the knot at once.
--
-- picture(key): what can be reached from the waiters of a key: keys, their holders and first waiters, the keys that those wait at, and so on.
--   nodes    ticket -> { t, id, key, weight, size, class, order, holds = { { key, weight }... } } of each that waits for a slot
--   keys     key -> { held = by nodes that are stuck, waits = nodes, heads = tickets, partial = true where only some holders were read }
--   cut      true where there was more than may be read
-- A ticket is stuck unless it would fit once all that are not stuck have gone, and nobody stuck is before it in line. What runs, is granted,
-- waits for a rate, or was not read, is not stuck. One that never fits, since it weighs more than the limit, is no matter of a deadlock.
local knot = {}
do
local MOST_READ, MOST_OF_KEY = 300, 100

-- node_of(p, id): reads a ticket, once; nil where it is not stuck.
local function node_of(p, id)
  local known = p.nodes[id]
  if known ~= nil then return known or nil end
  if p.read >= MOST_READ then
    p.cut = true
    return nil
  end
  p.read = p.read + 1
  spend(2)
  local t, node = ticket(id), false
  if t and t.state == 'waiting' and t.at <= t.n and HOLDS[kind_at(t)] then
    local o = at(t, t.at)
    local key = t.links[o + KEY]
    node = { t = t, id = id, key = key, weight = tonumber(t.links[o + WEIGHT]), class = standing(class_of(t, o), key, id),
      size = sized(t.links[o], t.links[o + SIZE], note(key)), order = order(t), holds = {}, stuck = true }
    if node.weight > node.size then node = false end
  end
  p.nodes[id] = node
  return node or nil
end

-- wait_at(p, node): its key is one to look at.
local function wait_at(p, node)
  if not p.keys[node.key] then
    p.keys[node.key] = { held = 0, waits = {}, heads = {} }
    p.list[#p.list + 1] = node.key
  end
  if not node.listed then
    node.listed = true
    local waits = p.keys[node.key].waits
    waits[#waits + 1] = node
  end
end

local function look_at(p, key)
  local k = p.keys[key]
  for _, head in ipairs(heads(key, note(key) or {})) do
    local node = node_of(p, head.id)
    if node and node.key == key then
      k.heads[#k.heads + 1] = node
      wait_at(p, node)
    end
  end
  k.partial = call('HLEN', P .. 'hold:' .. key) > MOST_OF_KEY
  local flat = k.partial and call('HSCAN', P .. 'hold:' .. key, 0, 'COUNT', MOST_OF_KEY)[2] or call('HGETALL', P .. 'hold:' .. key)
  for i = 1, math.min(#flat, 2 * MOST_OF_KEY), 2 do
    local node = node_of(p, flat[i])
    if node then
      node.holds[#node.holds + 1] = { key, tonumber(flat[i + 1]) or 1 }
      k.held = k.held + node.holds[#node.holds][2]
      wait_at(p, node)
    else
      k.moves = true
    end
  end
end

local function picture(key)
  local p = { nodes = {}, keys = {}, list = { key }, read = 0, cut = false }
  p.keys[key] = { held = 0, waits = {}, heads = {} }
  local i = 1
  while p.list[i] do
    look_at(p, p.list[i])
    i = i + 1
  end
  return p
end

-- is_free(p, node): it would fit, or may, and nobody stuck bars its way.
local function is_free(p, node)
  local k = p.keys[node.key]
  if k.partial then return k.moves end
  if k.held + node.weight > node.size then return false end
  for _, head in ipairs(k.heads) do
    local before = head.class == node.class or (head.order < node.order and head.size >= node.size)
    if head.stuck and head ~= node and before then return false end
  end
  return true
end

-- loosen(p, from): these are not stuck; nor are those, in the end, that only wait for them.
local function loosen(p, from)
  local i = 1
  while from[i] do
    local node = from[i]
    local touched = { node.key }
    for _, hold in ipairs(node.holds) do
      local k = p.keys[hold[1]]
      k.held, k.moves = k.held - hold[2], true
      touched[#touched + 1] = hold[1]
    end
    for _, key in ipairs(touched) do
      for _, other in ipairs(p.keys[key].waits) do
        if other.stuck and is_free(p, other) then
          other.stuck = false
          from[#from + 1] = other
        end
      end
    end
    i = i + 1
  end
end

-- last_of(p): of the stuck tickets that hold what another one waits for, the last in line: it would not get its slot back before the rest.
local function last_of(p)
  local last
  for _, key in ipairs(p.list) do
    for _, node in ipairs(p.keys[key].waits) do
      local wanted = false
      for _, hold in ipairs(node.stuck and node.holds or {}) do
        for _, other in ipairs(p.keys[hold[1]].waits) do
          wanted = wanted or (other.stuck and other ~= node)
        end
      end
      if wanted and (not last or node.order > last.order) then last = node end
    end
  end
  return last
end

local MOST_NAMED = 10
local function named(stuck)
  local names = {}
  for i = 1, math.min(#stuck, MOST_NAMED) do
    names[i] = stuck[i].id .. ' waits at ' .. stuck[i].key
  end
  if #stuck > MOST_NAMED then names[#names + 1] = 'and ' .. #stuck - MOST_NAMED .. ' more' end
  return table.concat(names, ', ')
end

-- knot.find(key): the tickets that must give up what they hold, so that everybody can go on; who is stuck, in words; and whether there is
-- more than could be looked at.
function knot.find(key)
  local p = picture(key)
  local free, stuck, victims = {}, {}, {}
  for _, name in ipairs(p.list) do
    for _, node in ipairs(p.keys[name].waits) do
      if is_free(p, node) then
        node.stuck = false
        free[#free + 1] = node
      end
    end
  end
  loosen(p, free)
  local large = p.cut
  for _, name in ipairs(p.list) do
    for _, node in ipairs(p.keys[name].waits) do
      if node.stuck then
        stuck[#stuck + 1] = node
        large = large or p.keys[name].partial
      end
    end
  end
  local victim = last_of(p)
  while victim do
    victim.stuck = false
    victims[#victims + 1] = victim.t
    loosen(p, { victim })
    victim = last_of(p)
  end
  return victims, named(stuck), large and (p.cut or #stuck > 0)
end

-- knot.restart(victims): they give up their slots; when those have gone to whom they are due, each walks again from its start. It keeps its
-- arrival, and what it has paid of rates stays paid.
function knot.restart(victims)
  for _, t in ipairs(victims) do
    noted(t, t.at)
    leave_line(t)
    free_slots(t)
  end
  drain()
  for i = #victims, 1, -1 do -- the last in line comes first in `victims`
    local t = victims[i]
    local stop = survey(t)
    take(t, stop)
    if stop > t.n then grant(t) else park(t) end
  end
end
end
