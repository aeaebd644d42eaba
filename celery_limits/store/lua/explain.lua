-- explain: where each ticket of a task is, and why. Reads only.
--
-- KEYS  the namespace
-- ARGV  now, task id, how many holders to name
-- Outcome  explained; detail: JSON
-- include base clock number record hold rate walk note decode line find

tick()
-- place(t, o, special): how many stand before it, of all who wait at its key.
local function place(t, o, special)
  local before = 0
  for field in pairs(special or {}) do
    local class = string.match(field, '^class:(.*)')
    if class then before = before + call('ZCOUNT', line(class, t.links[o + KEY]), '-inf', '(' .. whole(order(t))) end
  end
  return before + 1
end

local function describe(t)
  local told = { ticket = t.id, state = t.state, since = t.since, worker = t.worker, fence = t.fence, reason = t.reason,
    expires = t.expires, links = {} }
  for i = 1, t.n do
    local o = at(t, i)
    told.links[i] = { kind = t.links[o], key = t.links[o + KEY], held = i < t.at and t.links[o] ~= 'r' }
  end
  if t.state == 'waiting' then
    local o = at(t, t.at)
    local special = note(t.links[o + KEY])
    special_room(t, t.at, o)
    told.at, told.place, told.waiting = t.at, place(t, o, special), waiting(t.links[o + KEY], special)
    told.size = t.links[o] == 'r' and cjson.null or tostring(sized(t.links[o], t.links[o + SIZE], special))
    told.used, told.special = used(t.links[o + KEY]), special or cjson.null
    told.due = t.due and whole(t.due) or cjson.null
    told.holders = holders(t.links[o + KEY], tonumber(ARGV[3]))
  end
  return told
end

local told = {}
for _, nonce in ipairs(call('HKEYS', P .. 'task:' .. ARGV[2])) do
  if not string.find(nonce, ':', 1, true) then
    local t = ticket(ARGV[2] .. '.' .. nonce)
    told[#told + 1] = t and describe(t) or { ticket = ARGV[2] .. '.' .. nonce, state = 'unreadable' }
  end
end
local cancelled = call('EXISTS', P .. 'cancelled:' .. ARGV[2]) == 1
return { 'explained', cjson.encode({ now = whole(now), cancelled = cancelled, tickets = told }) }
