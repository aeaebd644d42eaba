-- status: one key as it is now. Reads only.
--
-- KEYS  the namespace
-- ARGV  now, key, how many holders and waiters to name
-- Outcome  status; detail: JSON
-- include base clock number record hold rate walk note decode line find

tick()
local key, page = ARGV[2], tonumber(ARGV[3])
local special = note(key)
return { 'status', cjson.encode({
  key = key,
  now = whole(now),
  used = used(key),
  waiting = waiting(key, special),
  special = special or cjson.null,
  tat = call('ZSCORE', P .. 'rates', key) or cjson.null,
  holders = holders(key, page),
  waiters = waiters(key, special, page),
}) }
