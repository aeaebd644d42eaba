-- For the reads: who holds a key and who waits there, up to a page of each. Times are text, since cjson would round them.
local function holder(id)
  local t = ticket(id)
  if not t then return { ticket = id } end
  return { ticket = id, task_id = t.task, state = t.state, worker = t.worker, since = t.since }
end

local function holders(key, page)
  local found, seen = {}, {}
  if page == 0 then return found end
  for _, member in ipairs(call('SSCAN', P .. 'hold:' .. key, 0, 'COUNT', page)[2]) do
    local id = string.match(member, '^(.*)#%d+$') or member
    if #found < page and not seen[id] then
      seen[id] = true
      found[#found + 1] = holder(id)
    end
  end
  return found
end

local function waiters(key, special, page)
  local found = {}
  if page == 0 then return found end
  for field in pairs(special or {}) do
    local class = string.match(field, '^class:(.*)')
    local ids = class and call('ZRANGE', line(class, key), 0, page - 1, 'WITHSCORES') or {}
    for i = 1, #ids, 2 do
      local t = holder(ids[i])
      t.order, t.class = ids[i + 1], class
      found[#found + 1] = t
    end
  end
  table.sort(found, function(a, b) return tonumber(a.order) < tonumber(b.order) end)
  for i = page + 1, #found do
    found[i] = nil
  end
  return found
end

-- declared(key, special): kind, size and extra of the link by which the first in line waits there, or else anyone holds it.
local function declared(key, special)
  local first = heads(key, special or {})[1]
  local member = first and first.id or call('SRANDMEMBER', P .. 'hold:' .. key)
  local t = member and ticket(string.match(member, '^(.*)#%d+$') or member)
  for i = 1, t and t.n or 0 do
    local o = at(t, i)
    if t.links[o + KEY] == key then return { t.links[o], t.links[o + SIZE], t.links[o + EXTRA] } end
  end
end

-- oldest(key, special): since when the one of the earliest arrival has waited there. Arrivals are in order within a rank, so
-- the first of each rank is looked at; there are few ranks, however many wait.
local function oldest(key, special)
  local arrival, id = NEWEST, nil
  for field in pairs(special or {}) do
    local class = string.match(field, '^class:(.*)')
    local rank = class and 0
    while rank do
      local first = call('ZRANGEBYSCORE', line(class, key), whole(rank * RANK_SPAN), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      rank = first[2] and math.floor(tonumber(first[2]) / RANK_SPAN) + 1
      if rank and tonumber(first[2]) % RANK_SPAN < arrival then
        arrival, id = tonumber(first[2]) % RANK_SPAN, first[1]
      end
    end
  end
  local t = id and ticket(id)
  return t and t.since
end
