-- One reading of the time for the whole script, when it is first needed. ARGV[1] is the time in microseconds where a test
-- passes it in, else '' for the server's own.
local now
local function tick()
  if now then return now end
  now = tonumber(ARGV[1])
  if not now then
    local t = call('TIME')
    now = t[1] * 1000000 + t[2]
  end
  return now
end
