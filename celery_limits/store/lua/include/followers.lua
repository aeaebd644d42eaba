-- needs note place
-- Keys whose size follows the workers of a queue: followers:<queue> is a sorted set of those where a ticket waits that declares so -> the
-- serial number of when it was last walked. Where the places of a queue change, its keys are walked again, within the budget of a sweep.
local followers = {}
do
local function name_of(queue)
  return P .. 'followers:' .. queue
end

-- followers.join(size, key): one whose size this is waits at the key from now on.
function followers.join(size, key)
  spend(1)
  call('ZADD', name_of(queue_in(size)), 'NX', serial(), key)
end

-- followers.leave(size, key, special): such a one has left; the last takes the key along.
function followers.leave(size, key, special)
  local field = 'w:' .. size
  for _, class in ipairs({ field, 'g' .. field, MIXED, 'g' .. MIXED }) do
    if special and special['class:' .. class] then return end
  end
  call('ZREM', name_of(queue_in(size)), key)
end

-- followers.has(size, key): is the key known to follow it?
function followers.has(size, key)
  return call('ZSCORE', name_of(queue_in(size)), key) ~= false
end

-- followers.next(queue, before): a key that was not walked since then.
function followers.next(queue, before)
  return call('ZRANGEBYSCORE', name_of(queue), '-inf', '(' .. before, 'LIMIT', 0, 1)[1]
end

-- followers.walked(queue, key): it was walked just now.
function followers.walked(queue, key)
  call('ZADD', name_of(queue), 'XX', serial(), key)
end
end
