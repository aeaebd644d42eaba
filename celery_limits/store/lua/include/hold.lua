-- Holders of a key: the set hold:<key>. A holder of weight w is w members (id, id#2, ... id#w), so the cardinality is the truth.
local function used(key)
  return call('SCARD', P .. 'hold:' .. key)
end

local function hold(verb, key, id, weight)
  if weight == '1' then return call(verb, P .. 'hold:' .. key, id) end
  local members = { id }
  for i = 2, tonumber(weight) do
    members[#members + 1] = id .. '#' .. i
    if #members == 500 then -- Lua's stack bounds what one unpack can pass
      call(verb, P .. 'hold:' .. key, unpack(members))
      members = {}
    end
  end
  if members[1] then call(verb, P .. 'hold:' .. key, unpack(members)) end
end
