-- The namespace: KEYS[1] is its prefix, hash tag and all, and the one key that a cluster routes by.
local call, P = redis.call, KEYS[1]
