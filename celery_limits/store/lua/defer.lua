-- defer: the end of a ticket could not be reported to its result backend; it is claimed again later, after a pause that doubles with each
-- failure. What has failed, and how often, is kept for the audit until the end is settled.
--
-- KEYS  the namespace
-- ARGV  now, ticket, fence as claimed, the pause after the first failure and the longest (microseconds), the class of the error
-- Outcome  deferred; detail: how often it has failed, 0 if the claim is not the caller's any more (then nothing was written)
-- include base clock number record decode

tick()
local t = ticket(ARGV[2])
if not t or t.state ~= 'ended' or t.fence ~= ARGV[3] or not call('ZSCORE', P .. 'outbox', t.id) then return { 'deferred', 0 } end
local failures = tonumber(string.match(call('HGET', P .. 'unreported', t.id) or '', '^(%d+) ') or 0) + 1
local pause = math.min(tonumber(ARGV[4]) * 2 ^ math.min(failures - 1, 50), tonumber(ARGV[5]))
t.fence = serial() -- so that the same call, if its answer is lost, counts once
save(t)
call('HSET', P .. 'unreported', t.id, whole(failures) .. ' ' .. whole(now) .. ' ' .. ARGV[6])
call('ZADD', P .. 'outbox', whole(now + pause), t.id)
return { 'deferred', failures }
