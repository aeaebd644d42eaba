-- needs serving work
-- What is special about a key, in the hash note:<key>; most keys have none, which one EXISTS tells for a whole chain.
-- Settings: size, rate (both by resize), paused, f.* (a floating limit). While waited for: class:<class>, pace, paced; preempt, d.first and d.due,
-- which are for include/supersede.lua. While anyone holds
-- more than one slot: extra, which include/hold.lua alone reads and writes. While anyone holds or waits who names a group: fair, which is
-- for include/fair.lua.

-- Notes as this script has read them, false for none. Whoever changes a note, or a line of its key, has it read again.
local as_read = {}

local function note(key)
  local fields = as_read[key]
  if fields ~= nil then return fields or nil end
  spend(1)
  local flat = call('HGETALL', P .. 'note:' .. key)
  if flat[1] then
    fields = {}
    for i = 1, #flat, 2 do
      fields[flat[i]] = flat[i + 1]
    end
  end
  as_read[key] = fields or false
  return fields
end

-- write_note(verb, key, ...): every change of a note, by HSET or HDEL.
local function write_note(verb, key, ...)
  call(verb, P .. 'note:' .. key, ...)
  as_read[key] = nil
end

-- queue_in(size): the queue that the size of a link of kind w names.
local function queue_in(size)
  return (string.gsub(size, '%%(%x%x)', { ['25'] = '%', ['3A'] = ':' }))
end

-- sized(kind, declared, special): the size in force for a concurrency link, declared by the ticket unless someone steers it; for kind w the
-- places of the workers that consume its queue.
local function sized(kind, declared, special)
  if special then
    if special.size then return tonumber(special.size) end
    if kind == 'f' and special['f.size'] then return tonumber(special['f.size']) end
  end
  if kind == 'w' then return (serving.of(queue_in(declared))) end
  return tonumber(declared)
end

-- paced(interval, burst, special): the same for a rate link.
local function paced(interval, burst, special)
  if special and special.rate then
    interval, burst = string.match(special.rate, '^(%S+) (%S+)$')
  end
  return tonumber(interval), tonumber(burst)
end
