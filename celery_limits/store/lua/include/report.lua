-- needs alarm serving
-- report(worker, entry): what a worker serves from now on, as in include/serving.lua. Keys whose size follows its queues are walked by the next
-- sweep, which is due at once: a beat does not wait for that.
local function report(worker, entry)
  for _, queue in ipairs(serving.report(worker, entry)) do
    if call('EXISTS', P .. 'followers:' .. queue) == 1 then alarm('places', queue, now) end
  end
end
