-- seek(text, start, pattern): string.find for a pattern that begins with ^ and these very characters. Lua tries a pattern at each
-- byte of a message; where it can begin at all, a plain search tells much sooner.
local function seek(text, start, pattern)
  local at = string.find(text, start, 1, true)
  while at do
    local from, to, found = string.find(text, pattern, at)
    if from then return from, to, found end
    at = string.find(text, start, at + 1, true)
  end
end
