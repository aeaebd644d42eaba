-- find_header(text): the limits header in a message as kombu writes it, where our publishers put it: the text from `"limits": ` on, cut at
-- MOST_HEADER bytes, where that begins in the message, and where in it the position starts and the header ends. Nil for a message that
-- has none or that is laid out in any other way: the gate, which reads it strictly, judges it.
-- One search for each part, from where the last one ended, and no pattern is tried at more than one place or on more than a header's
-- length: the work is linear in the message, whatever is in it.
local MOST_HEADER = 65536 -- the longest keys in the longest chain take less than half of it
local function find_header(text)
  local _, inside = string.find(text, '"headers": {', 1, true)
  local from = inside and string.find(text, '"limits": {"v": ', inside, true)
  if not from then return nil end
  local header = string.sub(text, from, from + MOST_HEADER)
  local at = string.find(header, '"at": ', 1, true)
  local _, stop = string.find(header, '^"at": %d+, "held": %b[], "fence": %d+}', at or #header + 1)
  if not stop then return nil end
  return header, from, at, stop
end
