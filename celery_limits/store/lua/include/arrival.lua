-- needs find_header record seal
-- Arrivals in the text of a message; include/seal.lua says what they are worth.

-- numbered(id, text): the message of a ticket with its arrival; one whose header is not as our publishers write it stays as it is.
local UNNUMBERED = '"arrival": "", '
local function numbered(id, text)
  local header, from, at = find_header(text)
  local before = at and at - #UNNUMBERED
  if not before or string.sub(header, before, at - 1) ~= UNNUMBERED then return text end
  local arrival = string.format('%.0f', serial())
  local seal = seal_of(id, arrival)
  if not seal then return text end
  local sealed = '"arrival": "' .. arrival .. '-' .. seal .. '", '
  return string.sub(text, 1, from + before - 2) .. sealed .. string.sub(text, from + at - 1)
end

-- claim_in(header, at): what a header claims of its arrival, as sealed_arrival() takes it; '' where it claims nothing.
local function claim_in(header, at)
  return string.match(string.sub(header, math.max(1, at - 60), at - 1), '"arrival": "(%d+%-%x+)", $') or ''
end
