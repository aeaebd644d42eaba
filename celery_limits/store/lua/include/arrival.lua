-- Who came first is known when a message is published through our own transport, whichever way it then takes: its arrival travels
-- in its header, as the fence of one that holds nothing yet.
local NOWHERE = '"at": 0, "held": [], "fence": '

-- numbered(text): the message with its arrival; one that has none of our header stays as it is.
local function numbered(text)
  local from, to = string.find(text, NOWHERE .. '0}', 1, true)
  if not from then return text end
  return string.sub(text, 1, from - 1) .. NOWHERE .. serial() .. string.sub(text, to)
end

-- arrival_in(text): 0 where there is none.
local function arrival_in(text)
  local _, _, came = seek(text, NOWHERE, '^"at": 0, "held": %[%], "fence": (%d+)}')
  return tonumber(came or 0)
end
