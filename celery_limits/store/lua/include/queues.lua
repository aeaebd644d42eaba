-- The queues that a worker consumes, as its channel lays them out in ARGV: how many, each with its name, '1' where it is consumed
-- without acknowledgement, and what tickets have at their end there; how many priority steps, and those; then the lists: for each
-- step, highest priority first, that of each queue.
local queues, bare, marks, steps, lists_from = {}, {}, {}, {}, 0

local function read_queues(from)
  for i = 1, tonumber(ARGV[from]) do
    local o = from + 3 * i
    queues[i], bare[i], marks[i] = ARGV[o - 2], ARGV[o - 1] == '1', ARGV[o]
  end
  from = from + 3 * #queues + 1
  for i = 1, tonumber(ARGV[from]) do
    steps[i] = ARGV[from + i]
  end
  lists_from = from + #steps
end

local function list_of(step, queue)
  return ARGV[lists_from + (step - 1) * #queues + queue]
end

-- list_at(queue, rank): the list of the queue that a message of this rank belongs to, should it have to go back.
local function list_at(queue, rank)
  local step = 1
  while steps[step + 1] and tonumber(steps[step + 1]) <= rank do
    step = step + 1
  end
  return list_of(step, queue)
end
