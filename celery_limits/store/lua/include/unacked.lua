-- What a worker has fetched and not acknowledged is in the hash unacked:<worker>; include/delivery.lua says how.

-- delivery_of(queue, list, id, text): what stands there for a delivery; `id` is that of a granted ticket, or ''.
local function delivery_of(queue, list, id, text)
  return queue .. '\n' .. list .. '\n' .. id .. '\n' .. text
end

-- read_acked(from, n): the n fields that ARGV names from there on, and whether HDEL is all that they need. One that begins with a
-- question mark is of a granted ticket that was not admitted: drop() in include/delivery.lua asks what became of it.
local function read_acked(from, n)
  local fields, plain = {}, true
  for i = 1, n do
    fields[i] = ARGV[from + i - 1]
    plain = plain and string.byte(fields[i]) ~= 63
  end
  return fields, plain
end
