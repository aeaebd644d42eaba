-- needs line
-- For the reads: who holds a key and who waits there, up to a page of each. Times are text, since cjson would round them.
-- They are shown by the server's clock: shown(time) is one of the namespace there, and since(t) when a ticket came to be what it is.
local function shown(time)
  return tonumber(time) and whole(time - ahead) or time
end

-- since(t): of one that runs it is kept by the clock of the server, or of its worker.
local function since(t)
  return t.state == 'running' and t.since or shown(t.since)
end

-- is_lapsed(t): does t run on a worker whose lease has lapsed? Its slots are taken until a live worker reclaims them.
local function is_lapsed(t)
  if t.state ~= 'running' then return false end
  return tonumber(call('ZSCORE', P .. 'leases', t.worker) or 0) <= now
end

-- holder(id, key): one that holds the key or waits at it; `size` is what it declares for a concurrency key.
local function holder(id, key)
  local t = ticket(id)
  if not t then return { ticket = id } end
  local found = { ticket = id, task_id = t.task, state = t.state, worker = t.worker, since = since(t), lapsed = is_lapsed(t) }
  for i = 1, t.n do
    local o = at(t, i)
    if t.links[o + KEY] == key and HOLDS[t.links[o]] then found.size = t.links[o + SIZE] end
  end
  return found
end

local function holders(key, page)
  local found = {}
  if page == 0 then return found end
  local flat = call('HSCAN', P .. 'hold:' .. key, 0, 'COUNT', page)[2]
  for i = 1, math.min(#flat, 2 * page), 2 do
    local one = holder(flat[i], key)
    one.weight = flat[i + 1]
    found[#found + 1] = one
  end
  spend(3 * #found)
  return found
end

local function waiters(key, special, page)
  local found = {}
  if page == 0 then return found end
  for _, class in ipairs(classes(special)) do
    local ids = call('ZRANGE', line(class, key), 0, page - 1, 'WITHSCORES')
    spend(#ids)
    for i = 1, #ids, 2 do
      local t = holder(ids[i], key)
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
  local id = first and first.id or call('HRANDFIELD', P .. 'hold:' .. key)
  local t = id and ticket(id)
  for i = 1, t and t.n or 0 do
    local o = at(t, i)
    local size = t.links[o + SIZE]
    if t.links[o] == 'w' then size = sized('w', size) end
    if t.links[o + KEY] == key then return { t.links[o], size, (split_extra(t.links[o + EXTRA])) } end
  end
end

-- held_size(key): the size that one holder, any one, declares for a concurrency key.
local function held_size(key)
  local id = call('HRANDFIELD', P .. 'hold:' .. key)
  spend(3)
  return id and holder(id, key).size
end

-- oldest(key, special): since when the one of the earliest arrival has waited there. Arrivals are in order within a rank, so
-- the first of each rank is looked at; there are few ranks, however many wait.
local function oldest(key, special)
  local arrival, id = NEWEST, nil
  for _, class in ipairs(classes(special)) do
    local rank = 0
    while rank do
      spend(1)
      local first = call('ZRANGEBYSCORE', line(class, key), whole(rank * RANK_SPAN), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      rank = first[2] and math.floor(tonumber(first[2]) / RANK_SPAN) + 1
      if rank and tonumber(first[2]) % RANK_SPAN < arrival then
        arrival, id = tonumber(first[2]) % RANK_SPAN, first[1]
      end
    end
  end
  local t = id and ticket(id)
  return t and since(t)
end

-- groups(key, special, page): a page of the groups of a key, those that wait first, in turn; then those that only hold.
local function groups(key, special, page)
  local f, found, seen = fair.state(special), {}, {}
  if not f or page == 0 then return found end
  local function add(group)
    if seen[group] or #found >= page then return end
    seen[group] = true
    local g, first, from = fair.read(key, group), nil, nil
    for _, class in ipairs(classes(special)) do
      local head = is_fair(class) and call('ZRANGE', fair.line(class, key, group), 0, 0, 'WITHSCORES') or {}
      if head[1] and (not first or tonumber(head[2]) < first) then first, from = tonumber(head[2]), holder(head[1], key).since end
    end
    found[#found + 1] = { group = group, held = g.held, share = g.share, waiting = g.waiting, since = from }
    spend(4)
  end
  for _, class in ipairs(classes(special)) do
    for _, member in ipairs(is_fair(class) and call('ZRANGE', fair.turns(class, key), 0, page - 1) or {}) do
      add(string.match(member, '^%d+|[%d.]+|%d+|%d+|(.*)$') or '')
    end
  end
  local flat = call('HSCAN', P .. 'groups:' .. key, 0, 'COUNT', page)[2]
  for i = 1, #flat, 2 do
    if not string.find(flat[i], '\t', 1, true) then add(flat[i]) end
  end
  return found
end
