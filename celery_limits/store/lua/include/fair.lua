-- needs note number place walk
-- Fair shares: whose turn it is among the groups of a key. Tickets that name none are the group ''.
--
-- At a concurrency key: by rank, then the group that holds the least in proportion to its share, then the one that was served longest ago,
-- then by arrival. At a rate key nothing is held, and groups take turns by virtual time (start-time fair queueing): a group that begins to
-- wait is at the time of the key, or at the end of what it was served last, if that is later; each service moves the key's time to its start,
-- and the group on by cost / share.
--
-- The field `fair` of a key's note is "<kind> <sum> <mark>": kind c with the slots that all named groups hold, or r with the virtual time;
-- mark is that of the group ''. A group's mark is the serial number of its last service (c), or its own virtual time (r).
--   groups:<key>  hash: <group> -> "<held> <share> <mark> <waiting> <arrival of the message that said the share>"; and
--                 <class> TAB <group> -> its member in turns
--   turns:<class>:<key>  sorted set, all scores 0: "<rank>|<level>|<mark>|<arrival>|<group>" of each group that waits in this class, in
--                 numbers of one width, so that the first member is who is next. The level is held / share (c), or the virtual time (r).
--   group:<class>:<key> TAB <group>  sorted set: its tickets in this class -> (rank, arrival)
--   idle:<key>    sorted set: groups that neither hold nor wait -> mark, the latest MOST_IDLE
-- All of it goes when no named group holds or waits (c), or nobody waits at all (r). Keys and groups have no control characters.

-- Keys that may have room, or a way past one who left, when the script ends: wake.lua works them off.
local freed = {}

-- A table and a block, since a script can have no more than 200 locals.
local fair = {}
do
local MOST_IDLE = 1000
local TURN = '%03d|%026.9f|%015.0f|%015.0f|%s'

function fair.line(class, key, group)
  return P .. 'group:' .. class .. ':' .. key .. '\t' .. group
end

function fair.turns(class, key)
  return P .. 'turns:' .. class .. ':' .. key
end

-- fair.state(special): { kind, sum, mark } of a key where a group was met; else nil.
function fair.state(special)
  local kind, sum, mark = string.match(special and special.fair or '', '^([cr]) (%S+) (%S+)$')
  return kind and { kind = kind, sum = tonumber(sum) or 0, mark = tonumber(mark) or 0 } or nil
end

-- fair.first_state(kind, key, special, amount): the state of a key where no group was met before this one, which has just got `amount`. Those
-- without a group, if there are any, count as served just now.
function fair.first_state(kind, key, special, amount)
  if kind == 'r' then return { kind = 'r', sum = 0, mark = waited(special) and 1 or 0 } end
  return { kind = 'c', sum = 0, mark = (waited(special) or used(key) > amount) and NEWEST or 0 }
end

-- begin_state(...): the same, to be written.
local function begin_state(kind, key, special, amount)
  local f = fair.first_state(kind, key, special, amount)
  if f.mark == NEWEST then f.mark = serial() end
  return f
end

function fair.forget(key)
  write_note('HDEL', key, 'fair')
  call('DEL', P .. 'groups:' .. key, P .. 'idle:' .. key)
end

local function write_state(key, f)
  if f.kind == 'c' and call('EXISTS', P .. 'groups:' .. key) == 0 then return fair.forget(key) end
  write_note('HSET', key, 'fair', string.format('%s %.17g %.17g', f.kind, f.sum, f.mark))
end

local GROUP = '^(%d+) (%S+) (%S+) (%d+) (%d+)$'
function fair.read(key, group)
  spend(1)
  local held, share, mark, waiting, since = string.match(call('HGET', P .. 'groups:' .. key, group) or '', GROUP)
  if held then
    return { held = tonumber(held), share = tonumber(share) or 1, mark = tonumber(mark) or 0, waiting = tonumber(waiting),
      since = tonumber(since) }
  end
  return { held = 0, share = 1, mark = tonumber(call('ZSCORE', P .. 'idle:' .. key, group) or 0), waiting = 0, since = 0 }
end

-- fair.write(key, f, group, g): the last thing that a change does, after place_group.
function fair.write(key, f, group, g)
  local groups, idle = P .. 'groups:' .. key, P .. 'idle:' .. key
  spend(3)
  if g.held > 0 or g.waiting > 0 then
    call('HSET', groups, group, string.format('%.0f %.15g %.17g %.0f %.0f', g.held, g.share, g.mark, g.waiting, g.since))
    call('ZREM', idle, group)
  else
    call('HDEL', groups, group)
    call('ZADD', idle, string.format('%.17g', g.mark), group)
    call('ZREMRANGEBYRANK', idle, 0, -MOST_IDLE - 1)
  end
  write_state(key, f)
end

-- A turn is { rank, level, mark, arrival }, numbers, since Lua compares strings by the server's locale.
function fair.turn_at(f, g, share, rank, arrival)
  local level, mark = g.held / share, g.mark
  if f.kind == 'r' then level, mark = g.waiting > 0 and g.mark or math.max(f.sum, g.mark), 0 end
  return { rank, tonumber(string.format('%.9f', level)), mark, arrival }
end

function fair.comes_before(a, b)
  for i = 1, 4 do
    if a[i] ~= b[i] then return a[i] < b[i] end
  end
  return false
end

-- fair.ungrouped(key, f, special): the group ''. What it holds is what no other does.
function fair.ungrouped(key, f, special)
  local waits = 0
  for _, class in ipairs(classes(special)) do
    if not is_fair(class) then waits = 1 end
  end
  return { held = f.kind == 'c' and math.max(0, used(key) - f.sum) or 0, share = 1, mark = f.mark, waiting = waits, since = 0 }
end

-- fair.turn_of(t, o, f, special): the turn that t has, or would have in its group, at the link at o. The share that it says counts from when it
-- joins; of a group in which nobody waits it is told already.
function fair.turn_of(t, o, f, special)
  local key, group, share = t.links[o + KEY], group_of(t, o)
  local g = group and fair.read(key, group) or fair.ungrouped(key, f, special)
  if not group or g.waiting > 0 or t.arrival < g.since then share = g.share end
  return fair.turn_at(f, g, share, t.rank, t.arrival)
end

-- fair.first_of(class, key): the first ticket of the group whose turn it is in this class, its order, the group and the turn.
function fair.first_of(class, key)
  local member = call('ZRANGE', fair.turns(class, key), 0, 0)[1]
  local rank, level, mark, arrival, group = string.match(member or '', '^(%d+)|([%d.]+)|(%d+)|(%d+)|(.*)$')
  if not group then return nil end
  local first = call('ZRANGE', fair.line(class, key, group), 0, 0, 'WITHSCORES')
  return first[1], tonumber(first[2]), group, { tonumber(rank), tonumber(level), tonumber(mark), tonumber(arrival) }
end

-- fair.member(key, f, class, group, g): what stands for the group in turns; false where it does not wait in this class.
function fair.member(key, f, class, group, g)
  local first = call('ZRANGE', fair.line(class, key, group), 0, 0, 'WITHSCORES')
  if not first[1] then return false end
  local place = tonumber(first[2])
  local rank, level, mark, arrival = unpack(fair.turn_at(f, g, g.share, math.floor(place / RANK_SPAN), place % RANK_SPAN))
  return string.format(TURN, rank, level, mark, arrival, group)
end

-- fair.place(key, f, class, group, g): that is so from now on.
function fair.place(key, f, class, group, g)
  local groups, field = P .. 'groups:' .. key, class .. '\t' .. group
  local old, new = call('HGET', groups, field), fair.member(key, f, class, group, g)
  spend(4)
  if new == old then return end
  if old then call('ZREM', fair.turns(class, key), old) end
  if not new then return call('HDEL', groups, field) end
  call('ZADD', fair.turns(class, key), 0, new)
  call('HSET', groups, field, new)
end

local function place_everywhere(key, f, group, g)
  for _, class in ipairs(g.waiting > 0 and classes(note(key)) or {}) do
    if is_fair(class) then fair.place(key, f, class, group, g) end
  end
end

-- say_share(g, t, share): of messages of one group that say different shares, the latest counts. True where that changes it.
local function say_share(g, t, share)
  if t.arrival < g.since then return false end
  local changed = g.share ~= share
  g.share, g.since = share, t.arrival
  return changed
end

-- fair.join(t, o, class): t, which names a group, waits in this class from now on.
function fair.join(t, o, class)
  local key, group, share = t.links[o + KEY], group_of(t, o)
  local special = note(key)
  local f = fair.state(special) or begin_state(t.links[o], key, special, 0)
  local g = fair.read(key, group)
  if g.waiting == 0 and f.kind == 'r' then g.mark = math.max(f.sum, g.mark) end
  if say_share(g, t, share) and g.waiting > 0 then freed[#freed + 1] = key end
  g.waiting = g.waiting + call('ZADD', fair.line(class, key, group), whole(order(t)), t.id)
  if not (special and special['class:' .. class]) then write_note('HSET', key, 'class:' .. class, '1') end
  place_everywhere(key, f, group, g)
  fair.write(key, f, group, g)
end

-- fair.join_ungrouped(key, special): the first that waits without a group at a rate key where others have one is at the time of the key.
function fair.join_ungrouped(key, special)
  local f = fair.state(special)
  if not f or f.kind ~= 'r' or fair.ungrouped(key, f, special).waiting > 0 then return end
  f.mark = math.max(f.sum, f.mark)
  write_state(key, f)
end

function fair.leave(class, key, group, id)
  local left = call('ZREM', fair.line(class, key, group), id)
  local f = fair.state(note(key))
  if not f then return end
  local g = fair.read(key, group)
  g.waiting = math.max(0, g.waiting - left)
  fair.place(key, f, class, group, g)
  fair.write(key, f, group, g)
end

-- serve(f, g, amount, share): a group gets this much.
local function serve(f, g, amount, share)
  if f.kind == 'r' then
    f.sum = math.max(f.sum, g.mark)
    g.mark = f.sum + amount / share
  else
    g.mark = serial()
  end
end

served = function(t, o, amount)
  local key, group, share = t.links[o + KEY], group_of(t, o)
  local special = note(key)
  local f, rate = fair.state(special), t.links[o] == 'r'
  if not f and group and not rate then f = begin_state('c', key, special, amount) end
  if not f or amount == 0 or (f.kind == 'r') ~= rate then return end
  spend(3)
  if waited(special) then freed[#freed + 1] = key end -- it may be the turn of another now
  if not group then
    serve(f, f, amount, 1)
    return write_state(key, f)
  end
  local g = fair.read(key, group)
  say_share(g, t, share)
  serve(f, g, amount, g.share)
  if rate then
    call('ZREMRANGEBYSCORE', P .. 'idle:' .. key, '-inf', string.format('%.17g', f.sum)) -- the same as never served
  else
    g.held, f.sum = g.held + amount, f.sum + amount
  end
  place_everywhere(key, f, group, g)
  fair.write(key, f, group, g)
end

-- fair.give_back(t, o, amount): so much of the concurrency link at o is free again.
function fair.give_back(t, o, amount)
  local key, group = t.links[o + KEY], group_of(t, o)
  local f = fair.state(note(key))
  if not f or amount == 0 then return end
  as_read[key] = nil
  if not group or f.kind == 'r' then return end
  local g = fair.read(key, group)
  g.held, f.sum = math.max(0, g.held - amount), math.max(0, f.sum - amount)
  place_everywhere(key, f, group, g)
  fair.write(key, f, group, g)
end
end
