-- Reads one page of a listing, newest id first. Writes nothing.
--
-- KEYS[1] rows
-- KEYS[2] index
-- ARGV[1] states  packed list of the states wanted
-- ARGV[2] queue   empty: any
-- ARGV[3] task    empty: any
-- ARGV[4] before  only ids before this one; empty: from the newest
-- ARGV[5] page    ids looked at, at most
-- Replies: the last id looked at (empty: there are no more), then id and row of each match, flat;
--   the row is nil when it is gone, and what cannot be read matches
-- Cost: O(S * (log M + page)), S states, M members of the index

local rows, index = KEYS[1], KEYS[2]

--@include rows

local states, wanted = cmsgpack.unpack(ARGV[1]), {}
local queue, task, page = ARGV[2], ARGV[3], tonumber(ARGV[5])
local last = ARGV[4] == '' and 'g' or ARGV[4] -- Ids are hexadecimal, so a g is after them all.
local ids = {}

local function newest(prefix)
  local members = redis.call('ZREVRANGEBYLEX', index, '(' .. prefix .. last, '[' .. prefix,
    'LIMIT', 0, page)
  for _, member in ipairs(members) do
    ids[#ids + 1] = string.sub(member, #prefix + 1)
  end
end

for _, state in ipairs(states) do
  wanted[state] = true
  if task == '' then
    newest('s\0' .. state .. '\0')
  end
end
if task ~= '' then
  newest('i\0' .. task .. '\0')
end
table.sort(ids, function(one, other) return one > other end)
local seen = math.min(page, #ids)
local found = { #ids < page and '' or ids[seen] }
for position = 1, seen do
  local id = ids[position]
  local row, packed = read_row(id)
  if not row or wanted[row[STATE]] and (queue == '' or row[QUEUE] == queue) then
    found[#found + 1] = id
    found[#found + 1] = packed
  end
end
return found
