-- status: keys as they are now. Reads only.
--
-- KEYS  the namespace
-- ARGV  now, how many holders and waiters to name, how many groups, key...
-- Outcome  status; detail: JSON, a list: of the first keys, as many as the budget allows, and one at the least
-- include base clock number work record hold rate walk serving note decode place newest fair followers begun line find

tick()
-- bodies(key): how many of its holders run; the others have their turn, or wait at a later link. Of many holders nobody counts them here.
local MOST_COUNTED = 100
local function bodies(key)
  local name, n = P .. 'hold:' .. key, 0
  if call('HLEN', name) > MOST_COUNTED then return cjson.null end
  local ids = call('HKEYS', name)
  spend(#ids)
  for _, id in ipairs(ids) do
    local task, nonce = string.match(id, '^(.+)%.([^.]+)$')
    local record = task and call('HGET', P .. 'task:' .. task, nonce)
    if record and string.find(record, '^running\t') then n = n + 1 end
  end
  return n
end

local page, most_groups, told = tonumber(ARGV[2]), tonumber(ARGV[3]), {}
for i = 4, #ARGV do
  if budget <= 0 then break end
  spend(8)
  local key = ARGV[i]
  local special = note(key)
  for _, name in ipairs({ 'paced', 'paused.until', 'size.until' }) do
    if special and special[name] then special[name] = shown(special[name]) end
  end
  told[#told + 1] = {
    key = key,
    now = whole(wall()),
    used = used(key),
    holding = call('HLEN', P .. 'hold:' .. key),
    classes = classes(special),
    held_size = held_size(key) or cjson.null,
    bodies = bodies(key),
    forced = call('HGET', P .. 'forced', key) or '0',
    waiting = waiting(key, special),
    special = special or cjson.null,
    declared = declared(key, special) or cjson.null,
    oldest = oldest(key, special) or cjson.null,
    tat = shown(call('ZSCORE', P .. 'rates', key)) or cjson.null,
    holders = holders(key, page),
    waiters = waiters(key, special, page),
    groups = groups(key, special, most_groups),
  }
end
return { 'status', cjson.encode(told) }
