-- needs base
-- What a worker has fetched and not acknowledged is the sorted set unacked:<worker>, in the order in which it was fetched. A delivery is
-- known by its field, a serial number, a dot and the mark of the channel that fetched it, with a g before that of a granted ticket; its
-- number is its score. Its member is the field, queue, the list it was popped from, the granted ticket or '', and the message, a line
-- each.
local function delivery_of(field, queue, list, id, text)
  return field .. '\n' .. queue .. '\n' .. list .. '\n' .. id .. '\n' .. text
end

local function number_of(field)
  return string.match(field, '%d+')
end

local function record_delivery(worker, field, queue, list, id, text)
  call('ZADD', P .. 'unacked:' .. worker, number_of(field), delivery_of(field, queue, list, id, text))
end

local function remove_delivery(worker, field)
  local number = number_of(field)
  return call('ZREMRANGEBYSCORE', P .. 'unacked:' .. worker, number, number)
end

local function has_delivery(worker, field)
  local number = number_of(field)
  return call('ZCOUNT', P .. 'unacked:' .. worker, number, number) == 1
end

-- read_acked(from, n): the n fields that ARGV names from there on, and whether removing them is all that they need. One that begins with
-- a question mark is of a granted ticket that was not admitted: drop() in include/delivery.lua asks what became of it.
local function read_acked(from, n)
  local fields, plain = {}, true
  for i = 1, n do
    fields[i] = ARGV[from + i - 1]
    plain = plain and string.byte(fields[i]) ~= 63
  end
  return fields, plain
end

local function remove_deliveries(worker, fields)
  local removed = 0
  for _, field in ipairs(fields) do
    removed = removed + remove_delivery(worker, field)
  end
  return removed
end
