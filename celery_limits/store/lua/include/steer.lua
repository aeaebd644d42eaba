-- needs alarm changes move note
-- What people set for a key, in its note: size or rate, and paused (since when); each until it is taken back, or for a time. Beside them, where they are given:
-- paused.until, paused.by, paused.reason; size.until, size.by, size.reason (of a rate as well); and size.before, what a size for a time gives way to, as
-- "<field> <value>". What is for a time ends by an alarm: resume|<key>, reset|<key>, queue|<queue>.
local function describe_setting(key, what, till, author)
  for name, value in pairs({ ['until'] = till and whole(till) or '', by = author.by, reason = author.reason }) do
    if value == '' then
      write_note('HDEL', key, what .. '.' .. name)
    else
      write_note('HSET', key, what .. '.' .. name, value)
    end
  end
end

local function forget_setting(key, what)
  write_note('HDEL', key, what .. '.until', what .. '.by', what .. '.reason')
end

local function pause_key(key, till, author)
  local special = note(key) or {}
  write_note('HSET', key, 'paused', special.paused or whole(wall()))
  describe_setting(key, 'paused', till, author)
  if till then alarm('resume', key, till) else silence('resume', key) end
  record_change(author, 'pause', key, special.paused and 'paused' or '', 'paused', till)
end

local function resume_key(key, author)
  local special = note(key) or {}
  write_note('HDEL', key, 'paused')
  forget_setting(key, 'paused')
  silence('resume', key)
  freed[#freed + 1] = key
  record_change(author, 'resume', key, special.paused and 'paused' or '', '')
end

-- in_force(special): the size or rate that someone has set, as "<field> <value>"; '' for none.
local function in_force(special)
  local field = special.size and 'size' or special.rate and 'rate'
  return field and field .. ' ' .. special[field] or ''
end

local function put_back(key, before)
  local field, value = string.match(before or '', '^(%l+) (.+)$')
  write_note('HDEL', key, 'size', 'rate', 'size.before')
  if field then write_note('HSET', key, field, value) end
end

local function resize_key(key, field, value, till, author)
  local special = note(key) or {}
  local old, before = in_force(special), special['size.until'] and special['size.before'] or nil
  write_note('HSET', key, field, value)
  if till then
    write_note('HSET', key, 'size.before', before or old)
    alarm('reset', key, till)
  else
    write_note('HDEL', key, 'size.before')
    silence('reset', key)
  end
  describe_setting(key, 'size', till, author)
  freed[#freed + 1] = key
  record_change(author, 'resize', key, old, field .. ' ' .. value, till)
end

-- reset_key(key, author, before): what the tasks declare is in force again; or what was before a size that was for a time.
local function reset_key(key, author, before)
  local old = in_force(note(key) or {})
  put_back(key, before)
  forget_setting(key, 'size')
  silence('reset', key)
  freed[#freed + 1] = key
  record_change(author, 'reset', key, old, before or '')
end

-- ended(special, what): is the time up for which this was set?
local function ended(special, what)
  local till = special and tonumber(special[what .. '.until'])
  return till and till <= now
end
