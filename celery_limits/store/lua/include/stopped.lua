-- needs base
-- stopped: a hash of queue -> JSON (since, by the server's clock; until, by that of the namespace; by; reason): queues that nothing is fetched from until someone resumes them.
local function is_stopped(queue)
  return queue ~= '' and call('HEXISTS', P .. 'stopped', queue) == 1
end
