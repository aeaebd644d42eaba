-- needs clock number
-- alive(worker): does it hold a lease? '' is no worker.
local function alive(worker)
  return worker ~= '' and call('ZSCORE', P .. 'worker:' .. worker, '!') ~= false
end

-- keep_time(): the time of the namespace goes on from here, whatever the clock of the server does.
local function keep_time()
  written = ahead
  call('SET', P .. 'clock', whole(now) .. ' ' .. whole(ahead))
end

-- Telling a dead worker from an outage. The hash pulse keeps when any worker was last heard (at) and, after a silence of more
-- than half a lease, until when nobody is declared dead (grace): everyone gets a lease's time to come back.

-- feel_pulse(lease, heard): heard is true for a worker. Others may notice a silence, but do not end it.
local function feel_pulse(lease, heard)
  local at, grace = unpack(call('HMGET', P .. 'pulse', 'at', 'grace'))
  local last = tonumber(at or now)
  local of_this_silence = tonumber(grace or 0) - lease > last
  if now - last > lease / 2 and (heard or not of_this_silence) then
    call('HSET', P .. 'pulse', 'grace', whole(now + lease))
  end
  if heard then call('HSET', P .. 'pulse', 'at', whole(now)) end
end

local function in_grace()
  return tonumber(call('HGET', P .. 'pulse', 'grace') or 0) > now
end

-- Delete pulse and bell when no lease is left.
local function still_pulse()
  if call('EXISTS', P .. 'leases') == 0 then call('DEL', P .. 'pulse', P .. 'bell') end
end
