-- fetched: what a worker has fetched and not acknowledged, of which it may not know.
--
-- KEYS  the namespace
-- ARGV  now, worker, the number after which to look, marks of channels (none: of any)
-- Returns  the number to go on from, '' when all were seen; then the fields of deliveries under these marks, in the order of fetching
-- include base unacked

local PAGE, marks = 50, {}
for i = 4, #ARGV do
  marks[ARGV[i]] = true
end
local found, last = { '' }, ''
local page = call('ZRANGEBYSCORE', P .. 'unacked:' .. ARGV[2], '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, PAGE)
for i = 1, #page, 2 do
  local field = string.match(page[i], '^([^\n]*)\n')
  last = page[i + 1]
  if field and (#ARGV < 4 or marks[string.match(field, '%.(.*)$')]) then found[#found + 1] = field end
end
if #page == 2 * PAGE then found[1] = last end
return found
