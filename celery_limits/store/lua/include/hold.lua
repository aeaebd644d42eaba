-- needs base
-- Holders of a key: the hash hold:<key> of ticket -> weight. Most weigh 1, so the number of fields is what they use. What heavier ones
-- use beyond that is summed in the field `extra` of the key's note: a key without a note, which is all that the quick ways through
-- admit and release look at, has none. No script's work grows with a weight.
local function used(key)
  return call('HLEN', P .. 'hold:' .. key) + (call('HGET', P .. 'note:' .. key, 'extra') or 0)
end

local function add_extra(key, n)
  if call('HINCRBY', P .. 'note:' .. key, 'extra', n) <= 0 then call('HDEL', P .. 'note:' .. key, 'extra') end
end

-- take_slot and free_slot return how much of the key changed hands.
local function take_slot(key, id, weight)
  local new = call('HSET', P .. 'hold:' .. key, id, weight)
  if weight ~= '1' and new == 1 then add_extra(key, weight - 1) end
  return new * weight
end

local function free_slot(key, id, weight)
  if weight == '1' then return call('HDEL', P .. 'hold:' .. key, id) end
  local held = call('HGET', P .. 'hold:' .. key, id)
  if not held then return 0 end
  call('HDEL', P .. 'hold:' .. key, id)
  add_extra(key, 1 - held)
  return tonumber(held)
end
