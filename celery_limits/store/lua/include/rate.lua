-- needs clock record
-- Rate limits by GCRA: rates is a sorted set of key -> theoretical arrival time (TAT), in microseconds.
-- A TAT in the past says the same as none, so sweep may drop it.

-- passes(key, interval, cost, burst): when a call of that cost may pass (nil: never, the rate is 0), and the TAT once it has.
local function passes(key, interval, cost, burst)
  if interval == 0 then return nil end
  local tat = tonumber(call('ZSCORE', P .. 'rates', key) or 0)
  if tat < tick() then tat = now end
  tat = tat + interval * cost
  return tat - interval * burst, tat
end

-- conforms(t, i, ...): may t pass rate link i now? What it would cost, and when it may, stays with t.
local function conforms(t, i, interval, cost, burst)
  local due, tat = passes(t.links[t.base + (i - 1) * WIDTH + KEY], interval, cost, burst)
  t.due = due
  t.tat = t.tat or {}
  t.tat[i] = tat
  return due ~= nil and due < now + 1 -- half a microsecond is lost to rounding at today's dates
end
