-- status: keys as they are now. Reads only.
--
-- KEYS  the namespace
-- ARGV  now, how many holders and waiters to name, key...
-- Outcome  status; detail: JSON, a list
-- include base clock number record hold rate walk note decode line find

tick()
local page, told = tonumber(ARGV[2]), {}
for i = 3, #ARGV do
  local key = ARGV[i]
  local special = note(key)
  told[#told + 1] = {
    key = key,
    now = whole(now),
    used = used(key),
    waiting = waiting(key, special),
    special = special or cjson.null,
    declared = declared(key, special) or cjson.null,
    oldest = oldest(key, special) or cjson.null,
    tat = call('ZSCORE', P .. 'rates', key) or cjson.null,
    holders = holders(key, page),
    waiters = waiters(key, special, page),
  }
end
return { 'status', cjson.encode(told) }
