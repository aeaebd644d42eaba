-- needs clock number record
-- changes: a list of what people have changed, the newest first, each as JSON; capped. Written by the script that makes the change.
-- An author is four arguments in a row: the id of the call, who, by which way (cli, web, python), and the reason. Without an id nothing
-- is recorded.
local MOST_CHANGES, MOST_REPEATED = 1000, 20

local function read_author(from)
  return { id = ARGV[from] or '', by = ARGV[from + 1] or '', via = ARGV[from + 2] or '', reason = ARGV[from + 3] or '' }
end

-- was_recorded(author): has this very call been made before? Its answer was lost, and it is repeated at once, so the newest tell.
local function was_recorded(author)
  if author.id == '' then return false end
  local mark = '"id":"' .. author.id .. '"'
  for _, entry in ipairs(call('LRANGE', P .. 'changes', 0, MOST_REPEATED - 1)) do
    if string.find(entry, mark, 1, true) then return true end
  end
  return false
end

-- record_change(author, what, subject, old, new, till): old and new as the verb has them; till: when it ends by itself, or nil. Times in the log are of the server's clock.
local function record_change(author, what, subject, old, new, till)
  if author.id == '' then return end
  local change = { id = author.id, at = whole(wall()), by = author.by, via = author.via, reason = author.reason, what = what,
    subject = subject, old = old, new = new, ['until'] = till and whole(till - ahead) or '' }
  call('LPUSH', P .. 'changes', cjson.encode(change))
  call('LTRIM', P .. 'changes', 0, MOST_CHANGES - 1)
end

-- The author of what ends by itself.
local function by_itself()
  return { id = 'end-' .. serial(), by = '', via = 'store', reason = 'its time is up' }
end
