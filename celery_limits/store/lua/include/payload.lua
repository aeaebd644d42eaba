-- needs decode find_header
-- The message as it goes back to its queue. The store never decodes a message: where its publisher marked the place (CUT, a byte
-- offset; 0: a message as kombu's Redis transport writes it, whose header has them last), position, held keys and fence are
-- written there as JSON, and every other byte stays what it was. `text`: the message, where it was read before.
local function payload(t, text)
  text = text or message(t)
  local cut = tonumber(t.cut)
  if not text or not cut then return text or '' end
  local held = {}
  for i = 1, t.at - 1 do
    local o = at(t, i)
    if HOLDS[t.links[o]] then held[#held + 1] = t.links[o + KEY] end
  end
  local keys = held[1] and cjson.encode(held) or '[]'
  local state = string.format('"at": %d, "held": %s, "fence": %d', t.at - 1, keys, tonumber(t.fence) or 0)
  if cut == 0 then
    local _, from, first, stop = find_header(text)
    if not from then return text end
    return string.sub(text, 1, from + first - 2) .. state .. string.sub(text, from + stop - 1)
  end
  return string.sub(text, 1, cut) .. state .. string.sub(text, cut + 1)
end
