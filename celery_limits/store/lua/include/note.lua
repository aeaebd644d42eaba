-- What is special about a key, in the hash note:<key>; most keys have none, which one EXISTS tells for a whole chain.
-- Settings: size, rate (both by resize), paused, f.* (a floating limit). While waited for: class:<class>, pace, paced.

-- Notes as this script has read them, false for none. Whoever changes a note, or a line of its key, has it read again.
local as_read = {}

local function note(key)
  local fields = as_read[key]
  if fields ~= nil then return fields or nil end
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

-- sized(kind, declared, special): the size in force for a concurrency link, declared by the ticket unless someone steers it.
local function sized(kind, declared, special)
  if special then
    if special.size then return tonumber(special.size) end
    if kind == 'f' and special['f.size'] then return tonumber(special['f.size']) end
  end
  return tonumber(declared)
end

-- paced(interval, burst, special): the same for a rate link.
local function paced(interval, burst, special)
  if special and special.rate then
    interval, burst = string.match(special.rate, '^(%S+) (%S+)$')
  end
  return tonumber(interval), tonumber(burst)
end
