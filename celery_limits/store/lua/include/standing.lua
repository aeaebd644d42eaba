-- needs fair
-- Where a waiter stands in the line of its link, which is at o: how many go before it, and how many wait. O(log n) for each class.

-- place_in_line(t, o, special): its place, from 1, by rank and arrival, among all who wait there; and how many that are.
local function place_in_line(t, o, special)
  local before, all = 0, 0
  for _, class in ipairs(classes(special)) do
    before = before + call('ZCOUNT', line(class, t.links[o + KEY]), '-inf', '(' .. whole(order(t)))
    all = all + call('ZCARD', line(class, t.links[o + KEY]))
    spend(2)
  end
  return before + 1, all
end

-- place_in_group(t, o, special): the same among those of its group; nil for one that names none.
local function place_in_group(t, o, special)
  local key, group, before, all = t.links[o + KEY], group_of(t, o), 0, 0
  if not group then return nil end
  for _, class in ipairs(classes(special)) do
    if is_fair(class) then
      before = before + call('ZCOUNT', fair.line(class, key, group), '-inf', '(' .. whole(order(t)))
      all = all + call('ZCARD', fair.line(class, key, group))
      spend(2)
    end
  end
  return before + 1, all
end
