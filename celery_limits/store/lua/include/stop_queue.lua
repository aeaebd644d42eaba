-- needs alarm changes ring stopped
-- Stopping a queue, and going on with it.
local function stop_queue(queue, till, author)
  local was = is_stopped(queue)
  local told = { since = whole(wall()), ['until'] = till and whole(till) or '', by = author.by, reason = author.reason }
  call('HSET', P .. 'stopped', queue, cjson.encode(told))
  if till then alarm('queue', queue, till) else silence('queue', queue) end
  record_change(author, 'pause', 'queue ' .. queue, was and 'paused' or '', 'paused', till)
end

local function start_queue(queue, author)
  local was = call('HDEL', P .. 'stopped', queue) == 1
  silence('queue', queue)
  ring_for(queue)
  record_change(author, 'resume', 'queue ' .. queue, was and 'paused' or '', '')
end
