-- needs base
-- The time of the namespace, in microseconds, read once for the whole script, when it is first needed. It is the server's, or ARGV[1] where a
-- test passes that in; but it does not go back when the server's clock does (a step by NTP, a failover to a replica whose clock is behind).
-- The string clock is "<mark> <ahead>": the latest time that a beat or a sweep has seen, and how far the time of the namespace is ahead of
-- the server's. A time before the mark is a step back: until the next beat or sweep writes how large it was, the time is the mark.
-- Every stored time is one of the namespace; only `expires` and what is shown to people are the server's: wall().
-- `written` is how far it is ahead by that string; until a step is written, `ahead` is more, and shrinks while the time stands.
local now, ahead, written
local function tick()
  if now then return now end
  now, ahead, written = tonumber(ARGV[1]), 0, 0
  if not now then
    local t = call('TIME')
    now = t[1] * 1000000 + t[2]
  end
  local mark, lead = string.match(call('GET', P .. 'clock') or '', '^(%d+) (%d+)$')
  if mark and #mark < 17 and #lead < 17 then
    written = tonumber(lead)
    ahead = math.max(written, mark - now)
    now = now + ahead
  end
  return now
end

local function wall()
  return tick() - ahead
end
