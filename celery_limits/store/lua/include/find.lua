-- For the reads: who holds a key and who waits there, up to a page of each. Times are text, since cjson would round them.
local function holder(id)
  local t = ticket(id)
  if not t then return { ticket = id } end
  return { ticket = id, task_id = t.task, state = t.state, worker = t.worker, since = t.since }
end

local function holders(key, page)
  local found, seen = {}, {}
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
