-- Work is counted, a unit for about one command, so that no script keeps the server for long, whatever it is given: loops end when
-- the budget is spent, and what is left is done by the next call. A part that is always done whole may overdraw it.
local budget = 1000
local function spend(n)
  budget = budget - n
end
