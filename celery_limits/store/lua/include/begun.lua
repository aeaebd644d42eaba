-- needs note record
-- Waiters that have begun before, such as retries: the set begun:<key>, and the field `begun` of the key's note while there are any, so that
-- a key without pays nothing. They are in the line like any other, but do not count against max_waiting. One table, since a script can have no more
-- than 200 locals.
local begun = {}

-- begun.says(t, o): does the link at o say so?
function begun.says(t, o)
  return string.byte(t.links[o + EXTRA]) == 43 and HOLDS[t.links[o]]
end

-- begun.mark(t): its links say so from now on.
function begun.mark(t)
  for o = 1, #t.links, WIDTH do
    local kind, extra = t.links[o], t.links[o + EXTRA]
    if kind == 'c' then t.links[o + EXTRA] = string.gsub(extra, '^[^|]*', '+') end
    if kind == 'd' then t.links[o + EXTRA] = string.gsub(extra, '^(%d*)k?', '%1k') end
    if kind == 'f' then t.links[o + EXTRA] = string.gsub(extra, '^%S+', '+') end
  end
end

function begun.join(t, o)
  if not begun.says(t, o) then return end
  call('SADD', P .. 'begun:' .. t.links[o + KEY], t.id)
  write_note('HSET', t.links[o + KEY], 'begun', '1')
end

-- begun.leave(key, id): `id` stands in the line no more.
function begun.leave(key, id)
  local special = note(key)
  if not special or not special.begun then return end
  call('SREM', P .. 'begun:' .. key, id)
  if call('EXISTS', P .. 'begun:' .. key) == 0 then write_note('HDEL', key, 'begun') end
end

-- begun.newcomers(key, special, all): how many of all who wait there have not begun before.
function begun.newcomers(key, special, all)
  return special and special.begun and all - call('SCARD', P .. 'begun:' .. key) or all
end
