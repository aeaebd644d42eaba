-- arrive: the next arrival, for a message that no publish of ours has numbered.
--
-- KEYS  the namespace
-- ARGV  now, ticket
-- Outcome  arrived; detail: the arrival with its seal as in include/seal.lua, '' in a namespace that has no secret
-- include base record seal

local arrival = string.format('%.0f', serial())
local seal = seal_of(ARGV[2], arrival)
return { 'arrived', seal and arrival .. '-' .. seal or '' }
