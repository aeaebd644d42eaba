-- Lua would print a time as 1.7e+15; every stored time goes through here.
local function whole(n)
  return string.format('%.0f', n)
end
