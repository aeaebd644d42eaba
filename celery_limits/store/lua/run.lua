-- run: a task that waits passes every limit that it has still to pass, though there is no room: a person has decided so. It holds what it passes like any other, so
-- nobody else enters those keys until they are below their size again; a rate is charged, and the next wait the longer.
--
-- KEYS  the namespace
-- ARGV  now, task id, the author as in include/changes.lua
-- Outcome  forced; detail: how many tickets were let through, how many run or have their turn already, then the keys that had no room
-- include base clock number work record hold rate walk serving note decode place newest fair followers begun line ring alarm floating stopped move wake supersede changes

tick()
local task, author = ARGV[2], read_author(3)
local PAGE, MOST_BYTES = 4, 1024 * 1024 -- fields that are read at once, of which every other one may be a large message

-- price(t, i, o): what passing the rate at o costs, whatever its room. A rate of 0 has no price.
local function price(t, i, o)
  local interval, burst = paced(t.links[o + SIZE], split_extra(t.links[o + EXTRA]), note(t.links[o + KEY]))
  conforms(t, i, interval, t.links[o + WEIGHT], burst)
  t.tat[i] = t.tat[i] or tonumber(call('ZSCORE', P .. 'rates', t.links[o + KEY]) or now)
end

local over, let, already = {}, 0, 0
local function force(t)
  local mine = {}
  for i = t.at, t.n do
    local o = at(t, i)
    if not (t.links[o] == 'r' and i < t.reached) then
      if i == t.at or not special_room(t, i, o) then mine[#mine + 1] = t.links[o + KEY] end
      if t.links[o] == 'r' then price(t, i, o) end
    end
  end
  noted(t, t.at)
  leave_line(t)
  take(t, t.n + 1)
  grant(t)
  let = let + 1
  for _, key in ipairs(mine) do
    call('HINCRBY', P .. 'forced', key, 1)
    over[#over + 1] = key
  end
end

local cursor, flat, bytes = '0', {}, 0
repeat
  cursor, flat = unpack(call('HSCAN', P .. 'task:' .. task, cursor, 'COUNT', PAGE))
  for i = 1, #flat, 2 do
    bytes = bytes + #flat[i + 1]
    if not string.find(flat[i], ':', 1, true) then
      local t = decode(task, flat[i], flat[i + 1])
      spend(10)
      if t and t.state == 'waiting' then
        force(t)
      elseif t and (t.state == 'granted' or t.state == 'running') then
        already = already + 1
      end
    end
  end
until cursor == '0' or budget <= 0 or bytes > MOST_BYTES
if let > 0 then record_change(author, 'run', 'task ' .. task, 'waiting', 'past ' .. table.concat(over, ', ')) end
return reply('forced', { let, already, unpack(over) })
