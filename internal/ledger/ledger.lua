-- The ledger between processes. One script, so that what is read and what is taken are one step; memory.go is its twin
-- and decides alike.
--
-- KEYS[1] prefix of every key; other keys are made from it here, so it is for one primary and not for a cluster.
-- ARGV[1] what to do, ARGV[2] now in ms (0: the server's clock), then what that takes.
--
-- wa:ledger                   "<generation> <ms of the rebuild>": while it is missing the ledger is cold
-- wa:budget:<gen>             hash of headers by session: HEAD, TOKENS and REST, then one HOLD for each lapse
-- wa:ring:<gen>:<session>     hash of four lists, one per window, of COUNTs, oldest first
-- wa:limits:<gen>             hash: shared token buckets p:<project>, o:<org>, f; backlogs b:<project>, what was too much in
--                             them a:<project>; quotas q:<project>:<month>
--                             Both hashes have a field "*": one without it was evicted, and the ledger is cold.
-- wa:affinity:<org>:<key>     "<session> <ms it ends>"
-- wa:health:<session>         "<0…100> <ms it ends>"; missing: 100
-- wa:turn:<org>, wa:config:<org>
-- wa:calls:<name>             "<level> <ms>": the token bucket of requests to the API; missing: full
--
-- The headers of all candidates are read by one command; a ring only where its header may be too high and that matters, a
-- health only where the header says that there is one.

local call, floor, min, max = redis.call, math.floor, math.min, math.max
local pack, unpack_, sub = struct.pack, struct.unpack, string.sub
local P, op, now = KEYS[1], ARGV[1], tonumber(ARGV[2])
if now == 0 then
  local t = call('TIME')
  now = t[1] * 1000 + floor(t[2] / 1000)
end
local s = floor(now / 1000)

local NEVER, SOON, BUCKETS = 4294967295, 5, 61
local SPAN, LIST = {1, 60, 1440, 1440}, {'m', 'h', 'd', 'n'}
local HEAD = '<I4I4I4I4I4' -- used in the windows, outstanding included; second from which more than that must be looked at
local TOKENS = '<dddd' -- the session's own token bucket: level, ms (0: never taken from), rate, burst
local HEADTOKENS = '<I4I4I4I4I4dd'
local REST = '<I4I4I4I4I4I4I4I4' -- outstanding frames and new chats, when the health ends (0: there is none), when the oldest
-- buckets of the windows leave, when the first hold lapses
local ATTOKENS, ATREST, ATHOLDS = 21, 53, 85
local EMPTY = pack(TOKENS, 0, 0, 0, 0)
local HOLD, COUNT = '<I4I4I4', '<I4I4' -- second, frames, new chats; bucket, frames
local KEEP = 187200000 -- ms: longer than a hold and a day together
local INF = math.huge

if op == 'open' then
  call('SET', P .. 'wa:ledger', ARGV[3] .. ' ' .. now)
  for g = ARGV[3] - 10, ARGV[3] - 1 do call('DEL', P .. 'wa:budget:' .. g, P .. 'wa:limits:' .. g) end
  return {'warm'}
elseif op == 'version' or op == 'bump' then
  local key = P .. 'wa:config:' .. ARGV[3]
  local v = tonumber(call('GET', key) or 0)
  if v == 0 or op == 'bump' then
    v = max(v + 1, now * 1000)
    call('SET', key, string.format('%.0f', v))
  end
  return {'version', v}
elseif op == 'admit' then -- in threes: name, rate, burst
  local wait, levels = 0, {}
  for i = 3, #ARGV, 3 do
    local rate, burst = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    local l, v = burst, call('GET', P .. 'wa:calls:' .. ARGV[i])
    if v then
      local was, at = string.match(v, '^(%S+) (%d+)$')
      l = min(burst, was + max(0, now - at) * rate / 1000)
    end
    if l < 1 then wait = max(wait, math.ceil((1 - l) * 1000 / rate)) end
    levels[i] = l
  end
  if wait > 0 then return {'full', wait, 0} end
  for i = 3, #ARGV, 3 do
    local full = math.ceil(ARGV[i + 2] * 1000 / ARGV[i + 1]) -- ms until it is full whatever was taken
    call('SET', P .. 'wa:calls:' .. ARGV[i], string.format('%.17g %.0f', levels[i] - 1, now), 'PX', full + 1000)
  end
  return {'admitted', 0, floor(levels[3] - 1)}
end

local marker, configured, pinnedTo
if op == 'reserve' or op == 'look' then
  local got = call('MGET', P .. 'wa:ledger', P .. 'wa:config:' .. ARGV[3], P .. 'wa:affinity:' .. ARGV[3] .. ':' .. ARGV[4])
  marker, configured, pinnedTo = got[1], got[2], got[3]
else
  marker = call('GET', P .. 'wa:ledger')
end
if not marker then return {'cold'} end
local gen, rebuilt = string.match(marker, '^(%d+) (%d+)$')
rebuilt = tonumber(rebuilt)
local B, R, L = P .. 'wa:budget:' .. gen, P .. 'wa:ring:' .. gen .. ':', P .. 'wa:limits:' .. gen

if op == 'probe' then return {'warm', tonumber(gen)} end
if op == 'cool' then
  if gen == ARGV[3] then call('DEL', P .. 'wa:ledger') end
  return {'warm'}
end

-- evicted makes a ledger cold that something is missing from.
local function evicted()
  call('DEL', P .. 'wa:ledger')
  return 'cold'
end

-- level of a token bucket. One that nobody took from begins empty when the ledger was rebuilt.
local function level(l, at, rate, burst)
  if at == 0 then at = rebuilt end
  return min(burst, l + max(0, now - at) * rate / 1000)
end

local function lacks(l, rate)
  if l >= 1 then return 0 end
  return math.ceil((1 - l) * 1000 / rate)
end

local function pinned(v)
  if not v then return nil, 0 end
  local slug, ends = string.match(v, '^(%S+) (%d+)$')
  ends = tonumber(ends)
  if now >= ends then return nil, 0 end
  return slug, ends
end

-- account gives what works on whole accounts. It is made when it is needed first: most decisions don't, and making functions
-- is a good part of what they would cost.
local A
local function account()
  if A then return A end
  -- add counts n in a bucket of a list.
  local function add(list, at, n)
    local p = #list - 7
    while p >= 1 do
      local a, c = unpack_(COUNT, list, p)
      if a == at then return sub(list, 1, p - 1) .. pack(COUNT, at, c + n) .. sub(list, p + 8) end
      if a < at then break end
      p = p - 8
    end
    return sub(list, 1, p + 7) .. pack(COUNT, at, n) .. sub(list, p + 8)
  end

  -- drop forgets what has left a list; it returns the rest, what is gone and when the next leaves.
  local function drop(list, span)
    local p, gone = 1, 0
    while p < #list do
      local a, c = unpack_(COUNT, list, p)
      local leaves = (a + BUCKETS) * span
      if leaves > s then return sub(list, p), gone, leaves end
      gone, p = gone + c, p + 8
    end
    return '', gone, NEVER
  end

  -- count adds frames to the windows of an open account.
  local function count(a, second, frames, chats)
    for w = 1, 4 do
      local n = w == 4 and chats or frames
      if n > 0 then
        a.list[w] = add(a.list[w], floor(second / SPAN[w]), n)
        a.total[w] = a.total[w] + n
        a.leaves[w] = min(a.leaves[w], (unpack_('<I4', a.list[w]) + BUCKETS) * SPAN[w])
      end
    end
  end

  -- open reads a session's whole account and makes it exact.
  local function open(slug, v)
    local ring = call('HMGET', R .. slug, 'm', 'h', 'd', 'n')
    local a = {total = {0, 0, 0, 0}, leaves = {NEVER, NEVER, NEVER, NEVER}, list = {}, out = 0, chats = 0, lapse = NEVER, ill = 0, holds = ''}
    for w = 1, 4 do a.list[w] = ring[w] or '' end
    if not v then
      a.tokens = EMPTY
      return a
    end
    local t, e = a.total, a.leaves
    t[1], t[2], t[3], t[4] = unpack_(HEAD, v)
    a.out, a.chats, a.ill, e[1], e[2], e[3], e[4], a.lapse = unpack_(REST, v, ATREST)
    t[1], t[2], t[3], t[4] = t[1] - a.out, t[2] - a.out, t[3] - a.out, t[4] - a.chats
    if not ring[1] then
      for w = 1, 4 do
        if e[w] <= s then -- it was not written for so long that all has left
          t[w], e[w] = 0, NEVER
        elseif e[w] < NEVER then -- it was evicted: from the next call on the ledger is cold
          evicted()
        end
      end
    end
    a.tokens, a.holds = sub(v, ATTOKENS, ATREST - 1), sub(v, ATHOLDS)
    if s >= a.lapse then -- what lapsed counts as if its frame had left then
      local rest, first = '', NEVER
      for p = 1, #a.holds, 12 do
        local l, n, c = unpack_(HOLD, a.holds, p)
        if l <= s then
          a.out, a.chats = a.out - n, a.chats - c
          count(a, l, n, c)
        else
          rest, first = rest .. sub(a.holds, p, p + 11), min(first, l)
        end
      end
      a.holds, a.lapse = rest, first
    end
    for w = 1, 4 do
      if s >= e[w] then
        local gone
        a.list[w], gone, e[w] = drop(a.list[w], SPAN[w])
        t[w] = t[w] - gone
      end
    end
    return a
  end

  local function save(slug, a)
    local t, e = a.total, a.leaves
    call('HSET', R .. slug, 'm', a.list[1], 'h', a.list[2], 'd', a.list[3], 'n', a.list[4])
    call('PEXPIRE', R .. slug, KEEP)
    local v = pack(HEAD, t[1] + a.out, t[2] + a.out, t[3] + a.out, t[4] + a.chats, a.ill > 0 and 0 or min(e[2], a.lapse))
      .. a.tokens .. pack(REST, a.out, a.chats, a.ill, e[1], e[2], e[3], e[4], a.lapse) .. a.holds
    call('HSET', B, slug, v)
    return v
  end

  -- free ends one outstanding frame. One that lapsed already is not there any more.
  local function free(a, lapses, new)
    for p = 1, #a.holds, 12 do
      local l, n, c = unpack_(HOLD, a.holds, p)
      if l == lapses then
        a.out, n = a.out - 1, n - 1
        if new == 1 and c > 0 then a.chats, c = a.chats - 1, c - 1 end
        if n > 0 then
          a.holds = sub(a.holds, 1, p - 1) .. pack(HOLD, l, n, c) .. sub(a.holds, p + 12)
        else
          a.holds = sub(a.holds, 1, p - 1) .. sub(a.holds, p + 12)
          a.lapse = NEVER
          for q = 1, #a.holds, 12 do a.lapse = min(a.lapse, (unpack_('<I4', a.holds, q))) end
        end
        return
      end
    end
  end

  -- refilled is a bucket with a token given back, or nil if it has had time to fill since it was taken.
  local function refilled(v, taken)
    local l, at, rate, burst = unpack_(TOKENS, v)
    if at == 0 or (now - taken) * rate >= burst * 1000 then return nil end
    return pack(TOKENS, min(burst, level(l, at, rate, burst) + 1), now, rate, burst)
  end

  local function well(v)
    if v then
      local score, ends = string.match(v, '^(%d+) (%d+)$')
      if now < tonumber(ends) then return tonumber(score) end
    end
    return 100
  end
  A = {open = open, save = save, count = count, free = free, refilled = refilled, well = well}
  return A
end

if op == 'settle' then
  -- in twelves: session, generation, taken at, lapses, new chat, org, project, month, frames, ms ago, never stored, health by
  local acc = account()
  -- refill and lower give back to fields of the limits.
  local function refill(field, taken)
    local v = call('HGET', L, field)
    local full = v and acc.refilled(v, taken)
    if full then call('HSET', L, field, full) end
  end

  local function lower(field)
    local v = tonumber(call('HGET', L, field) or 0)
    if v > 0 then call('HSET', L, field, v - 1) end
  end

  local accounts, i = {}, 3
  while ARGV[i] do
    local slug, g, taken, lapses, new = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
    local org, project, month = ARGV[i + 5], ARGV[i + 6], ARGV[i + 7]
    local frames, ended, unstored, by = tonumber(ARGV[i + 8]), now - ARGV[i + 9], ARGV[i + 10] == '1', tonumber(ARGV[i + 11])
    i = i + 12
    local reserved, a = g ~= '', nil
    if slug ~= '' then
      a = accounts[slug] or acc.open(slug, call('HGET', B, slug))
      accounts[slug] = a
    end
    -- What ended before the rebuild read the rows, it has counted; what never had a row, it hasn't.
    if not (reserved and g ~= gen and (unstored or ended <= rebuilt)) then
      if a then
        if reserved and lapses > 0 then acc.free(a, lapses, new) end
        if frames > 0 then
          acc.count(a, floor(ended / 1000), frames, reserved and new or 0)
        elseif reserved then
          a.tokens = acc.refilled(a.tokens, taken) or a.tokens
        end
      end
      if project ~= '' then
        lower('b:' .. project)
        if frames == 0 then
          refill('p:' .. project, taken)
          refill('o:' .. org, taken)
          refill('f', taken)
          if month ~= '' then lower('q:' .. project .. ':' .. month) end
        end
      end
    end
    if a and by ~= 0 then
      local key = P .. 'wa:health:' .. slug
      local was = a.ill > 0 and acc.well(call('GET', key)) or 100
      local is = max(0, min(100, was + by))
      if is < 100 then
        local ends = now + 21600000
        call('SET', key, is .. ' ' .. ends, 'PX', 21600000)
        a.ill = math.ceil(ends / 1000)
      elseif a.ill > 0 then
        call('DEL', key)
        a.ill = 0
      end
    end
  end
  for slug, a in pairs(accounts) do acc.save(slug, a) end
  return {'settled'}
elseif op == 'pin' then -- org, key, session, ttl
  local key = P .. 'wa:affinity:' .. ARGV[3] .. ':' .. ARGV[4]
  local holder = pinned(call('GET', key))
  if holder then return {'pinned', holder} end
  call('SET', key, ARGV[5] .. ' ' .. now + ARGV[6], 'PX', ARGV[6])
  return {'pinned', ARGV[5]}
elseif op == 'merge' then -- org, from, into
  local from, into = P .. 'wa:affinity:' .. ARGV[3] .. ':' .. ARGV[4], P .. 'wa:affinity:' .. ARGV[3] .. ':' .. ARGV[5]
  local slug, ends = pinned(call('GET', from))
  local _, other = pinned(call('GET', into))
  if slug and ends > other then call('SET', into, slug .. ' ' .. ends, 'PX', max(1, ends - now)) end
  call('DEL', from)
  return {'merged'}
elseif op == 'unpin' then -- session, then keys
  for i = 4, #ARGV do
    if pinned(call('GET', ARGV[i])) == ARGV[3] then call('DEL', ARGV[i]) end
  end
  return {'unpinned'}
elseif op == 'rebase' then -- in twos: project, backlog by its rows
  for i = 3, #ARGV, 2 do
    local b, a = 'b:' .. ARGV[i], 'a:' .. ARGV[i]
    local have = tonumber(call('HGET', L, b) or 0)
    local over = max(0, have - ARGV[i + 1])
    local off = min(over, tonumber(call('HGET', L, a) or 0))
    call('HSET', L, b, have - off, a, over - off)
  end
  return {'rebased'}
end

-- reserve and look: 3 org, 4 match key, 5 ms of affinity, 6 strategy, 7 dice as doubles, 8 lapses after s, 9 version, 10 bound,
-- 11 health floor, 12 project ('': no limits), 13 month, 14 quota, 15 backlog, 16-21 rate and burst of project, org, fleet,
-- 22-25 what is moved: session, lapses, new chat, taken at, 26 kinds of candidates: budgets, new chat, rate and burst,
-- 27 the kind of each candidate, 28 their sessions, each between zeros, 29 where each
-- begins in that, and where one more would.
local org, key, bound = ARGV[3], ARGV[4], ARGV[10] == '1'
local looking, least = op == 'look', tonumber(ARGV[11])
local KIND, packed, kindOf, names, begins = '<I4I4I4I4I4dd', ARGV[26], ARGV[27], ARGV[28], ARGV[29]
local n = #begins / 4 - 1
local project, month = ARGV[12], ARGV[13]
local kinds = {}
for p = 1, #packed, 36 do kinds[#kinds + 1] = {unpack_(KIND, packed, p)} end
local byte = string.byte
local function session(i)
  local from, next = unpack_('<I4', begins, 4 * i - 3), unpack_('<I4', begins, 4 * i + 1)
  return sub(names, from, next - 2)
end
-- place is the candidate that a session is, nil if it is none.
local function place(slug)
  local at = string.find(names, '\0' .. slug .. '\0', 1, true)
  local low, high = 1, n
  while at and low <= high do
    local mid = floor((low + high) / 2)
    local from = unpack_('<I4', begins, 4 * mid - 3)
    if from == at + 1 then return mid end
    if from <= at then low = mid + 1 else high = mid - 1 end
  end
end
local function kind(i)
  local low, high = byte(kindOf, 2 * i - 1, 2 * i)
  return kinds[low + 256 * high + 1]
end

-- check says whether candidate i can send. It returns why not (0: it can), the ms at which it can by waiting, what is left
-- of its hour, its header, which it may have made exact, and its health.
local function check(i, v)
  local slug, k = session(i), kind(i)
  local health = 100
  if looking and v then v = account().save(slug, account().open(slug, v)) end
  if v and select(3, unpack_(REST, v, ATREST)) > 0 then health = account().well(call('GET', P .. 'wa:health:' .. slug)) end
  if not bound and health < least then return 1, INF, 0, v, health end
  local rate, burst, new = k[6], k[7], k[5]
  local used = {0, 0, 0, 0, NEVER}
  local function full() return used[1] >= k[1] or used[2] >= k[2] or used[3] >= k[3] or (new == 1 and used[4] >= k[4]) end
  if v then
    used = {unpack_(HEAD, v)}
    if (s >= used[5] or full()) and not looking then
      v = account().save(slug, account().open(slug, v))
      used = {unpack_(HEAD, v)}
    end
  end
  local why, at = 0, 0
  if full() then
    local out, chats, leaves, _ = 0, 0, {NEVER, NEVER, NEVER, NEVER}, nil
    if v then out, chats, _, leaves[1], leaves[2], leaves[3], leaves[4] = unpack_(REST, v, ATREST) end
    for w = 1, 3 + new do
      local over = used[w] - k[w] + 1
      if over > 0 then
        if why == 0 then why = w + 1 end
        if k[w] == 0 then
          at = INF
        elseif over == 1 and used[w] > (w == 4 and chats or out) then
          at = max(at, leaves[w] * 1000)
        else
          local list, frees = call('HGET', R .. slug, LIST[w]) or '', nil
          for p = 1, #list, 8 do
            local a, c = unpack_(COUNT, list, p)
            over = over - c
            if over <= 0 then
              frees = (a + BUCKETS) * SPAN[w]
              break
            end
          end
          at = max(at, (frees or (floor((s + SOON) / SPAN[w]) + BUCKETS) * SPAN[w]) * 1000)
        end
      end
    end
  end
  if rate > 0 then
    local l, ms = 0, 0
    if v then l, ms = unpack_(TOKENS, v, ATTOKENS) end
    local wait = lacks(level(l, ms, rate, burst), rate)
    if wait > 0 then
      if why == 0 then why = 6 end
      at = max(at, now + wait)
    end
  end
  return why, at, k[2] - used[2], v, health
end

-- headers of the candidates; false where there is none. Behind them is the field that says that nothing was evicted.
local headers
local function readAll()
  if headers then return true end
  headers = {}
  local fields = {}
  for i = 1, n do fields[i] = session(i) end
  fields[n + 1] = '*'
  for a = 1, n + 1, 1000 do
    local got = call('HMGET', B, unpack(fields, a, min(n + 1, a + 999)))
    if n < 1000 then
      headers = got
    else
      for i = 1, #got do headers[a - 1 + i] = got[i] end
    end
  end
  return headers[n + 1]
end

local levels, waiting, spent = {}, 0, 0 -- of the limits

-- decide returns the verdict, then what goes with it: the winner and whether it was pinned, or the wait and the reasons.
local function decide()
  if ARGV[9] ~= '0' and tonumber(configured or 0) ~= tonumber(ARGV[9]) then return 'stale', tonumber(configured or 0) end
  if project ~= '' then
    local got, wait = call('HMGET', L, 'p:' .. project, 'o:' .. org, 'f', 'b:' .. project, 'q:' .. project .. ':' .. month, '*'), 0
    if not got[6] then return evicted() end
    for b = 1, 3 do
      local rate, burst = tonumber(ARGV[14 + 2 * b]), tonumber(ARGV[15 + 2 * b])
      if rate > 0 then
        local l, at = 0, 0
        if got[b] then l, at = unpack_(TOKENS, got[b]) end
        levels[b] = level(l, at, rate, burst)
        wait = max(wait, lacks(levels[b], rate))
      end
    end
    if wait > 0 then return 'rated', wait end
    waiting, spent = tonumber(got[4] or 0), tonumber(got[5] or 0)
    local quota, backlog = tonumber(ARGV[14]), tonumber(ARGV[15])
    if month ~= '' and quota > 0 and spent >= quota then return 'overdrawn', 0 end
    if backlog > 0 and waiting >= backlog then return 'backlog', 0 end
    if n == 0 then return 'taken', 0, false end
  end
  if key ~= '' and not bound then
    local slug = pinned(pinnedTo)
    local i = slug and place(slug)
    if i then
      local got = headers and {headers[i], headers[n + 1]} or call('HMGET', B, slug, '*')
      if not got[2] then return evicted() end
      local why, _, _, v = check(i, got[1])
      if why == 0 then
        headers = headers or {}
        headers[i] = v
        return 'taken', i, true
      end
    end
  end
  if #ARGV[7] > 8 then -- a few tries at random before all are looked at: dice.go says why that changes no chances
    local fields, picks, seen, largest = {}, {}, {}, 0
    for p = 9, #ARGV[7], 16 do
      local i = floor(unpack_('<d', ARGV[7], p) * n) + 1
      picks[#picks + 1], fields[#fields + 1] = i, session(i)
    end
    for k = 1, #kinds do largest = max(largest, kinds[k][2]) end
    fields[#fields + 1] = '*'
    local got = call('HMGET', B, unpack(fields))
    if not got[#fields] then return evicted() end
    for t = 1, #picks do
      local i = picks[t]
      local why, _, left, v = check(i, seen[i] or got[t])
      seen[i] = v
      if why == 0 and unpack_('<d', ARGV[7], 16 * t + 1) * largest < left then
        headers = headers or {}
        headers[i] = v
        return 'taken', i, false
      end
    end
  end
  if not readAll() then return evicted() end
  -- Most candidates need no second look and are decided on here. sums are running ones, of what is left of their hours.
  local frees, sums, whys, f, total, soon = {}, {}, {}, 0, 0, INF
  local last, c1, c2, c3, c4, new, rate, burst
  for i = 1, n do
    local k = kinds[2] and kind(i) or kinds[1]
    if k ~= last then
      c1, c2, c3, c4, new, rate, burst, last = k[1], k[2], k[3], k[4], k[5], k[6], k[7], k
    end
    local v, left = headers[i], nil
    if v then
      if rate == 0 then
        local u1, u2, u3, u4, soft = unpack_(HEAD, v)
        if s < soft and u1 < c1 and u2 < c2 and u3 < c3 and (new == 0 or u4 < c4) then left = c2 - u2 end
      else
        local u1, u2, u3, u4, soft, l, at = unpack_(HEADTOKENS, v)
        if s < soft and u1 < c1 and u2 < c2 and u3 < c3 and (new == 0 or u4 < c4)
          and burst >= 1 and (l >= 1 or at > 0 and l + (now - at) * rate / 1000 >= 1) then left = c2 - u2 end
      end
    end
    if not left then
      local why, at, rest, made = check(i, v)
      headers[i] = made or false
      if why == 0 then left = rest else soon = min(soon, at) end
      whys[i] = why
    end
    if left then
      f, total = f + 1, total + left
      frees[f], sums[f] = i, total
    end
  end
  if f == 0 then
    for i = 1, n do whys[i] = string.char(whys[i]) end
    if soon == INF then return 'ineligible', 0, table.concat(whys) end
    return 'exhausted', soon - now, table.concat(whys)
  end
  local at = f
  if ARGV[6] == 'priority' then
    at = 1
  elseif ARGV[6] == 'round-robin' then
    at = tonumber(call('GET', P .. 'wa:turn:' .. org) or 0) % f + 1
  else
    local x = floor(unpack_('<d', ARGV[7]) * total)
    for i = 1, f do
      if x < sums[i] then
        at = i
        break
      end
    end
  end
  return 'taken', frees[at], false
end

if looking then
  local out = {}
  if n > 0 and not readAll() then return {evicted()} end
  for i = 1, n do
    local why, _, _, v, health = check(i, headers[i])
    local u1, u2, u3, u4, o = 0, 0, 0, 0, 0
    if v then
      u1, u2, u3, u4 = unpack_(HEAD, v)
      o = unpack_(REST, v, ATREST)
    end
    headers[i] = v
    out[i] = pack('<I4I4I4I4I4I4I4', why, u1, u2, u3, u4, o, health)
  end
  local verdict, a, b = decide()
  return {verdict, a or 0, b and b ~= true and b or (b and '1' or '0'), table.concat(out)}
end

local verdict, winner, more = decide()
if verdict ~= 'taken' then return {verdict, winner, more or ''} end

-- hold makes one frame outstanding; it works on a header alone.
local function hold(v, lapses, new, tokens)
  if not v then
    return pack(HEAD, 1, 1, 1, new, lapses) .. (tokens or EMPTY)
      .. pack(REST, 1, new, 0, NEVER, NEVER, NEVER, NEVER, lapses) .. pack(HOLD, lapses, 1, new)
  end
  local u1, u2, u3, u4, soft = unpack_(HEAD, v)
  local out, chats, ill, e1, e2, e3, e4, lapse = unpack_(REST, v, ATREST)
  local holds, found = sub(v, ATHOLDS), nil
  for p = 1, #holds, 12 do
    local l, n, c = unpack_(HOLD, holds, p)
    if l == lapses then
      holds = sub(holds, 1, p - 1) .. pack(HOLD, l, n + 1, c + new) .. sub(holds, p + 12)
      found = true
      break
    end
  end
  if not found then holds = holds .. pack(HOLD, lapses, 1, new) end
  return pack(HEAD, u1 + 1, u2 + 1, u3 + 1, u4 + new, min(soft, lapses)) .. (tokens or sub(v, ATTOKENS, ATREST - 1))
    .. pack(REST, out + 1, chats + new, ill, e1, e2, e3, e4, min(lapse, lapses)) .. holds
end

local lapses = 0
if winner > 0 then
  local slug, k, v = session(winner), kind(winner), headers[winner]
  local wait = tonumber(ARGV[8])
  local step = wait > 3600 and 3600 or 60
  lapses = (floor((s + wait) / step) + 1) * step
  local tokens
  if k[6] > 0 then
    local l, at = 0, 0
    if v then l, at = unpack_(TOKENS, v, ATTOKENS) end
    tokens = pack(TOKENS, level(l, at, k[6], k[7]) - 1, now, k[6], k[7])
  end
  call('HSET', B, slug, hold(v, lapses, k[5], tokens))
  if not bound then
    if ARGV[6] == 'round-robin' and not more then call('INCR', P .. 'wa:turn:' .. org) end
    if key ~= '' then call('SET', P .. 'wa:affinity:' .. org .. ':' .. key, slug .. ' ' .. now + ARGV[5], 'PX', ARGV[5]) end
  end
end
if project ~= '' then
  local set, fields = {'b:' .. project, waiting + 1}, {'p:' .. project, 'o:' .. org, 'f'}
  for b = 1, 3 do
    if levels[b] then
      set[#set + 1] = fields[b]
      set[#set + 1] = pack(TOKENS, levels[b] - 1, now, tonumber(ARGV[14 + 2 * b]), tonumber(ARGV[15 + 2 * b]))
    end
  end
  if month ~= '' then
    set[#set + 1] = 'q:' .. project .. ':' .. month
    set[#set + 1] = spent + 1
  end
  call('HSET', L, unpack(set))
end
if ARGV[22] ~= '' then
  local slug = ARGV[22]
  local acc = account()
  local a = acc.open(slug, call('HGET', B, slug))
  acc.free(a, tonumber(ARGV[23]), tonumber(ARGV[24]))
  a.tokens = acc.refilled(a.tokens, tonumber(ARGV[25])) or a.tokens
  acc.save(slug, a)
end
return {'taken', winner, more and 1 or 0, tonumber(gen), now, lapses}
