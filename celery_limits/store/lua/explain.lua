-- explain: where each ticket of a task is, and why. Reads only.
--
-- KEYS  the namespace
-- ARGV  now, task id, how many holders to name
-- Outcome  explained; detail: JSON; `more`: the task has more tickets than are described
-- include base clock number work record hold rate walk serving note decode place newest fair followers begun line standing find delay

tick()
local MOST_TOLD = 20 -- tickets; only a flood has more
local PAGE, MOST_BYTES = 4, 1024 * 1024 -- fields that are read at once, of which every other one may be a large message

-- in_group(t, o, special): its place in its group, how many of the group wait, how many groups wait there, and how many of them are before
-- it in turn; of one that names no group, nil.
local function in_group(t, o, special)
  local key, group = t.links[o + KEY], group_of(t, o)
  local f = fair.state(special)
  if not group or not f then return cjson.null end
  local g = fair.read(key, group)
  local told = { group = group, place = place_in_group(t, o, special), waiting = g.waiting, share = g.share, held = g.held, groups = 0, ahead = 0 }
  for _, class in ipairs(classes(special)) do
    if is_fair(class) then
      told.groups = told.groups + call('ZCARD', fair.turns(class, key))
      local member = call('HGET', P .. 'groups:' .. key, class .. '\t' .. group)
      if member then told.ahead = told.ahead + call('ZLEXCOUNT', fair.turns(class, key), '-', '(' .. member) end
      spend(3)
    end
  end
  return told
end

-- in_force(t, o, special): the size of a concurrency link, null for a rate; and whether the limit, or the rate, is 0.
local function in_force(t, o, special)
  if t.links[o] == 'r' then return cjson.null, paced(t.links[o + SIZE], '1', special) == 0 end
  if not HOLDS[t.links[o]] then return cjson.null, false end
  local size = sized(t.links[o], t.links[o + SIZE], special)
  return tostring(size), size == 0
end

local function describe(t)
  local told = { ticket = t.id, state = t.state, since = since(t), worker = t.worker, fence = t.fence, reason = t.reason,
    expires = t.expires, waits = t.waits, lapsed = is_lapsed(t), workers = call('ZCOUNT', P .. 'leases', '(' .. whole(now), '+inf'), links = {} }
  for i = 1, t.n do
    local o = at(t, i)
    told.links[i] = { kind = t.links[o], key = t.links[o + KEY], held = i < t.at and HOLDS[t.links[o]] or false }
  end
  if t.state == 'delayed' then told.due = shown(due_of(t) or ahead) end
  if t.state == 'waiting' then
    local o = at(t, t.at)
    local special = note(t.links[o + KEY])
    special_room(t, t.at, o)
    told.at = t.at
    told.place, told.waiting = place_in_line(t, o, special)
    told.size, told.stopped = in_force(t, o, special)
    told.used, told.special = used(t.links[o + KEY]), special or cjson.null
    told.holding = call('HLEN', P .. 'hold:' .. t.links[o + KEY])
    told.due = t.due and shown(t.due) or cjson.null
    told.fair = in_group(t, o, special)
    told.holders = holders(t.links[o + KEY], tonumber(ARGV[3]))
  end
  return told
end

-- tickets_of(task): up to MOST_TOLD of them, described; and whether there are more.
local function tickets_of(task)
  local told, cursor, flat, bytes = {}, '0', {}, 0
  repeat
    cursor, flat = unpack(call('HSCAN', P .. 'task:' .. task, cursor, 'COUNT', PAGE))
    for i = 1, #flat, 2 do
      local nonce = flat[i]
      bytes = bytes + #flat[i + 1]
      if not string.find(nonce, ':', 1, true) then
        local t = decode(task, nonce, flat[i + 1])
        told[#told + 1] = t and describe(t) or { ticket = task .. '.' .. nonce, state = 'unreadable' }
      end
    end
  until cursor == '0' or #told >= MOST_TOLD or bytes > MOST_BYTES
  return told, cursor ~= '0'
end

-- follow(task): who superseded it, who superseded that one, and so on to the last, and how many steps that is; nil for most.
local MOST_STEPS = 1000
local function follow(task)
  local first = call('HGET', P .. 'successors', 'task ' .. task)
  local last, steps, next = first, 1, first
  while next and steps < MOST_STEPS do
    next = call('HGET', P .. 'successors', 'task ' .. last)
    if next then last, steps = next, steps + 1 end
  end
  return first and { by = first, last = last, steps = steps, tickets = (tickets_of(last)) } or cjson.null
end

local told, left = tickets_of(ARGV[2])
local cancelled = call('EXISTS', P .. 'cancelled:' .. ARGV[2]) == 1
return { 'explained', cjson.encode({ now = whole(wall()), cancelled = cancelled, tickets = told, more = left, superseded = follow(ARGV[2]) }) }
