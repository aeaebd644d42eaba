-- The limits header of a message that has not started, as our publishers write it into kombu's JSON: the fields in this order. What
-- looks any other way is left to the gate, which reads it strictly.
local START = '"limits": {"v": 1, "ticket": "'
local HEADER = '^"limits": ({"v": 1, "ticket": "[^"\\]*", "links": %[{.-}%], "at": 0, "held": %[%], "fence": %d+})'
local UNIT = { s = 1e6, m = 60e6, h = 3600e6 }

-- first_key(text): the key of its first link; nil for a message that must not wait in a line yet, or that only the gate can judge.
local function first_key(text)
  if not string.find(text, '"eta": null', 1, true) or not string.find(text, '"expires": null', 1, true) then return nil end
  local _, _, key = seek(text, START, '^"limits": {"v": 1, "ticket": "[^"\\]*", "links": %[{"kind": "%l+", "key": "([^"\\]*)"')
  return key
end

local function longest_line(link)
  return link.on_full == 'discard' and '0' or link.max_waiting and whole(link.max_waiting)
end

-- The fields of a link, by its kind, as store.py's link_fields lays them out.
local fields_of = {
  concurrency = function(link)
    return 'c', link.key, whole(link.limit), whole(link.weight or 1), longest_line(link) or ''
  end,
  floating = function(link)
    local extra = string.format('%s %.0f %s', longest_line(link) or '-', link.every * 1e6, link.refresh)
    return 'f', link.key, whole(link.default), whole(link.weight or 1), extra
  end,
  rate = function(link)
    local number, unit = string.match(link.rate, '^([%d.]+)/(%l)$')
    local interval = tonumber(number) == 0 and 0 or UNIT[unit] / number
    return 'r', link.key, string.format('%.17g', interval), whole(link.cost or 1), whole(link.burst)
  end,
}

-- ticket_of(text, queue, mark): the ticket that a message of this queue stands in line with; `mark` is what its name has at its end
-- there. Nil when it can't be told.
local function ticket_of(text, queue, mark)
  local _, _, header = seek(text, START, HEADER)
  local read, limits = pcall(cjson.decode, header or '')
  if not read then return nil end
  local task, nonce = string.match(limits.ticket, '^(.+)%.([^.]+)$')
  if not task or not string.find(text, '"id": "' .. task .. '"', 1, true) then return nil end
  if string.sub(nonce, -#mark) ~= mark then nonce = nonce .. mark end
  local t = { id = task .. '.' .. nonce, task = task, nonce = nonce, base = 1, links = {}, n = #limits.links }
  for _, link in ipairs(limits.links) do
    local fine, kind, key, size, weight, extra = pcall(fields_of[link.kind], link)
    if not fine or string.find(key .. extra, '[\t\n]') then return nil end
    local o = #t.links
    t.links[o + 1], t.links[o + 2], t.links[o + 3], t.links[o + 4], t.links[o + 5] = kind, key, size, weight, extra
  end
  local _, _, rank = seek(text, '"routing_key": "', '^"routing_key": "[^"\\]*"}, "priority": (%d+)')
  if not rank then return nil end
  t.state, t.worker, t.fence, t.sends, t.arrival, t.at, t.reached, t.kept, t.reason = 'waiting', '', 0, 0, 0, 1, 1, 'own', ''
  t.rank, t.delivery, t.queue, t.expires, t.since = math.min(tonumber(rank), 255), '', queue, '', whole(now)
  t.late, t.cut, t.waits = '', '0', ''
  return sound(t) and t or nil
end
