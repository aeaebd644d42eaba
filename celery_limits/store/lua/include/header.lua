-- needs clock decode number
-- The limits header of a message that has not started, as our publishers write it into kombu's JSON: the fields in this order. What
-- looks any other way is left to the gate, which reads it strictly.
local first_key, may_wait, rank_in, ticket_of
do
local FIRST_KEY = '^"limits": {"v": [12], "ticket": "[^"\\]*", "links": %[{"kind": "%l+", "key": "([^"\\]*)"'
local NOT_STARTED = '^"at": 0, "held": %[%], '
local UNIT = { s = 1e6, m = 60e6, h = 3600e6, d = 86400e6, w = 604800e6 }

-- first_key(header, at): the key of the first link of a message that has not started; nil for any other.
function first_key(header, at)
  return string.find(header, NOT_STARTED, at) and string.match(header, FIRST_KEY)
end

-- may_wait(text): may a message stand in a line before a gate has seen it? Not one with an eta; one that expires is for the gate too.
function may_wait(text)
  return string.find(text, '"eta": null', 1, true) and string.find(text, '"expires": null', 1, true)
end

local WINS = { replace = '~', preempt = '!' }
local function longest_line(link)
  return link.begun and '+' or link.on_full == 'discard' and '0' or link.max_waiting and whole(link.max_waiting) .. (WINS[link.on_full] or '')
end

-- The fields of a link, by its kind, as store.py's link_fields lays them out.
local fields_of = {
  concurrency = function(link, queue)
    if link.limit == 'workers' then
      local size = string.gsub(queue, '[%%:]', { ['%'] = '%25', [':'] = '%3A' })
      return 'w', link.key, size, whole(link.weight or 1), longest_line(link) or ''
    end
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
  debounce = function(link)
    return 'd', link.key, whole(link.quiet * 1e6), '1', (link.at_most and whole(link.at_most * 1e6) or '') .. (link.keep and 'k' or '')
  end,
}

-- rank_in(text, from): the priority among the properties, which follow on the headers.
function rank_in(text, from)
  local _, inside = string.find(text, '"properties": {', from, true)
  local at = inside and string.find(text, '"priority": ', inside, true)
  return at and tonumber(string.match(text, '^"priority": (%d+)[,}]', at))
end

-- ticket_of(header, stop, queue, mark): the ticket that a message of this queue stands in line with; `mark` is what its name has at its end
-- there. Nil when it can't be told.
function ticket_of(header, stop, queue, mark)
  local read, limits = pcall(cjson.decode, string.sub(header, #'"limits": ' + 1, stop))
  if not read then return nil end
  local task, nonce = string.match(limits.ticket, '^(.+)%.([^.]+)$')
  if not task then return nil end
  if string.sub(nonce, -#mark) ~= mark then nonce = nonce .. mark end
  local t = { id = task .. '.' .. nonce, task = task, nonce = nonce, base = 1, links = {}, n = #limits.links }
  for _, link in ipairs(limits.links) do
    local fine, kind, key, size, weight, extra = pcall(fields_of[link.kind], link, queue)
    if fine and link.group then extra = string.format('%s|%.15g|%s', extra, link.share or 1, link.group) end
    if not fine or string.find(key .. extra, '[\t\n]') then return nil end
    local o = #t.links
    t.links[o + 1], t.links[o + 2], t.links[o + 3], t.links[o + 4], t.links[o + 5] = kind, key, size, weight, extra
  end
  t.state, t.worker, t.fence, t.sends, t.arrival, t.at, t.reached, t.kept, t.reason = 'waiting', '', 0, 0, 0, 1, 1, 'own', ''
  t.rank, t.delivery, t.queue, t.expires, t.since = 0, '', queue, '', whole(now)
  t.late, t.cut, t.waits = '', '0', ''
  return sound(t) and t or nil
end
end
