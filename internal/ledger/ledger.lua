-- The ledger between processes. One script, so that what is read and what is taken are one step; memory.go is its twin
-- and decides alike.
--
-- KEYS[1] prefix of every key; other keys are made from it here, so it is for one primary and not for a cluster.
-- ARGV[1] what to do, ARGV[2] now in ms (0: the server's clock), then what that takes.
--
-- wa:ledger                   "<generation> <ms of the rebuild>": while it is missing the ledger is cold
-- wa:budget:<gen>:<session>   header: eleven numbers (see HEAD), then one hold of three (lapses, frames, new chats) each
-- wa:ring:<gen>:<session>     hash of four lists, one per window, of two numbers (bucket, count) each, oldest first
-- wa:tokens:<gen>:<bucket>    level, ms, rate, burst
-- wa:backlog:, wa:above:<gen>:<project>, wa:quota:<gen>:<project>:<month>
-- wa:affinity:<org>:<key>     "<session> <ms it ends>"
-- wa:health:<session>         "<0…100> <ms it ends>"; missing: 100
-- wa:turn:<org>, wa:config:<org>
--
-- The header is read for every candidate, the ring for the few whose header may be too high where that matters.

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
local HEAD = '<I4I4I4I4I4I4I4I4I4I4I4' -- totals of the windows, outstanding frames and new chats, when the hour's oldest
-- bucket leaves, the first hold lapses, and the oldest buckets of minute, day and new chats leave
local HEADLEN, HOLD, COUNT = 44, '<I4I4I4', '<I4I4'
local KEEP, LONG = 187200000, 3456000000 -- ms: longer than a hold and a day together; longer than a month
local INF = math.huge

if op == 'open' then
  call('SET', P .. 'wa:ledger', ARGV[3] .. ' ' .. now)
  return {'warm'}
elseif op == 'version' or op == 'bump' then
  local key = P .. 'wa:config:' .. ARGV[3]
  local v = tonumber(call('GET', key) or 0)
  if v == 0 or op == 'bump' then
    v = max(v + 1, now * 1000)
    call('SET', key, string.format('%.0f', v))
  end
  return {'version', v}
end

local marker = call('GET', P .. 'wa:ledger')
if not marker then return {'cold'} end
local gen, rebuilt = string.match(marker, '^(%d+) (%d+)$')
rebuilt = tonumber(rebuilt)
local B, R, T = P .. 'wa:budget:' .. gen .. ':', P .. 'wa:ring:' .. gen .. ':', P .. 'wa:tokens:' .. gen .. ':'

if op == 'probe' then return {'warm', tonumber(gen)} end
if op == 'cool' then
  if gen == ARGV[3] then call('DEL', P .. 'wa:ledger') end
  return {'warm'}
end

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

-- open reads a session's whole account and makes it exact.
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

local function open(slug, v)
  local ring = call('HMGET', R .. slug, 'm', 'h', 'd', 'n')
  local a = {total = {0, 0, 0, 0}, leaves = {NEVER, NEVER, NEVER, NEVER}, list = {}, out = 0, chats = 0, lapse = NEVER, holds = ''}
  for w = 1, 4 do a.list[w] = ring[w] or '' end
  if not v then return a end
  local t, e = a.total, a.leaves
  t[1], t[2], t[3], t[4], a.out, a.chats, e[2], a.lapse, e[1], e[3], e[4] = unpack_(HEAD, v)
  a.holds = sub(v, HEADLEN + 1)
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

local function header(a)
  local t, e = a.total, a.leaves
  return pack(HEAD, t[1], t[2], t[3], t[4], a.out, a.chats, e[2], a.lapse, e[1], e[3], e[4]) .. a.holds
end

local function save(slug, a)
  local v = header(a)
  call('SET', B .. slug, v, 'PX', KEEP)
  call('HSET', R .. slug, 'm', a.list[1], 'h', a.list[2], 'd', a.list[3], 'n', a.list[4])
  call('PEXPIRE', R .. slug, KEEP)
  return v
end

-- hold makes one frame outstanding; it works on a header alone.
local function hold(v, lapses, new)
  local t1, t2, t3, t4, out, chats, e2, lapse, e1, e3, e4 = 0, 0, 0, 0, 0, 0, NEVER, NEVER, NEVER, NEVER, NEVER
  local holds = ''
  if v then
    t1, t2, t3, t4, out, chats, e2, lapse, e1, e3, e4 = unpack_(HEAD, v)
    holds = sub(v, HEADLEN + 1)
  end
  local found
  for p = 1, #holds, 12 do
    local l, n, c = unpack_(HOLD, holds, p)
    if l == lapses then
      holds = sub(holds, 1, p - 1) .. pack(HOLD, l, n + 1, c + new) .. sub(holds, p + 12)
      found = true
      break
    end
  end
  if not found then holds = holds .. pack(HOLD, lapses, 1, new) end
  return pack(HEAD, t1, t2, t3, t4, out + 1, chats + new, e2, min(lapse, lapses), e1, e3, e4) .. holds
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
        a.chats = a.chats - c
        a.holds = sub(a.holds, 1, p - 1) .. sub(a.holds, p + 12)
        a.lapse = NEVER
        for q = 1, #a.holds, 12 do a.lapse = min(a.lapse, (unpack_('<I4', a.holds, q))) end
      end
      return
    end
  end
end

-- level of a token bucket. One that nobody took from begins empty when the ledger was rebuilt.
local function level(v, rate, burst)
  local l, at = 0, rebuilt
  if v then l, at = unpack_('<dd', v) end
  return min(burst, l + max(0, now - at) * rate / 1000)
end

local function lacks(l, rate)
  if l >= 1 then return 0 end
  return math.ceil((1 - l) * 1000 / rate)
end

local function pour(key, l, rate, burst)
  call('SET', T .. key, pack('<dddd', l, now, rate, burst), 'PX', min(LONG, floor(burst / rate * 1000) + 60000))
end

-- refill gives back a token, unless the bucket has had time to fill since it was taken.
local function refill(key, taken)
  local v = call('GET', T .. key)
  if not v then return end
  local _, _, rate, burst = unpack_('<dddd', v)
  if (now - taken) * rate >= burst * 1000 then return end
  pour(key, min(burst, level(v, rate, burst) + 1), rate, burst)
end

local function lower(key, n)
  local v = tonumber(call('GET', key) or 0)
  if v > 0 then call('SET', key, max(0, v - n), 'PX', LONG) end
end

local function well(v)
  if v then
    local score, ends = string.match(v, '^(%d+) (%d+)$')
    if now < tonumber(ends) then return tonumber(score) end
  end
  return 100
end

local function pinned(key)
  local v = call('GET', key)
  if not v then return nil, 0 end
  local slug, ends = string.match(v, '^(%S+) (%d+)$')
  ends = tonumber(ends)
  if now >= ends then return nil, 0 end
  return slug, ends
end

local function pin(key, slug, ends)
  call('SET', key, slug .. ' ' .. ends, 'PX', max(1, ends - now))
end

if op == 'settle' then
  -- in twelves: session, generation, taken at, lapses, new chat, org, project, month, frames, ms ago, never stored, health by
  local accounts, i = {}, 3
  while ARGV[i] do
    local slug, g, taken, lapses, new = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
    local org, project, month = ARGV[i + 5], ARGV[i + 6], ARGV[i + 7]
    local frames, ended, unstored, by = tonumber(ARGV[i + 8]), now - ARGV[i + 9], ARGV[i + 10] == '1', tonumber(ARGV[i + 11])
    i = i + 12
    local reserved = g ~= ''
    -- What ended before the rebuild read the rows, it has counted; what never had a row, it hasn't.
    if not (reserved and g ~= gen and (unstored or ended <= rebuilt)) then
      if slug ~= '' then
        local a = accounts[slug]
        if not a then
          a = open(slug, call('GET', B .. slug))
          accounts[slug] = a
        end
        if reserved and lapses > 0 then free(a, lapses, new) end
        if frames > 0 then count(a, floor(ended / 1000), frames, reserved and new or 0) end
      end
      if project ~= '' then lower(P .. 'wa:backlog:' .. gen .. ':' .. project, 1) end
      if reserved and frames == 0 then
        if slug ~= '' then refill('s:' .. slug, taken) end
        if project ~= '' then
          refill('p:' .. project, taken)
          refill('o:' .. org, taken)
          refill('f', taken)
          if month ~= '' then lower(P .. 'wa:quota:' .. gen .. ':' .. project .. ':' .. month, 1) end
        end
      end
    end
    if slug ~= '' and by ~= 0 then
      local key = P .. 'wa:health:' .. slug
      local v = call('GET', key)
      local was = well(v)
      local is = max(0, min(100, was + by))
      if is < 100 then
        call('SET', key, is .. ' ' .. (now + 21600000), 'PX', 21600000)
      elseif v then
        call('DEL', key)
      end
    end
  end
  for slug, a in pairs(accounts) do save(slug, a) end
  return {'settled'}
elseif op == 'pin' then -- org, key, session, ttl
  local key = P .. 'wa:affinity:' .. ARGV[3] .. ':' .. ARGV[4]
  local holder = pinned(key)
  if holder then return {'pinned', holder} end
  pin(key, ARGV[5], now + ARGV[6])
  return {'pinned', ARGV[5]}
elseif op == 'merge' then -- org, from, into
  local from, into = P .. 'wa:affinity:' .. ARGV[3] .. ':' .. ARGV[4], P .. 'wa:affinity:' .. ARGV[3] .. ':' .. ARGV[5]
  local slug, ends = pinned(from)
  local _, other = pinned(into)
  if slug and ends > other then pin(into, slug, ends) end
  call('DEL', from)
  return {'merged'}
elseif op == 'unpin' then -- session, then keys
  for i = 4, #ARGV do
    if pinned(ARGV[i]) == ARGV[3] then call('DEL', ARGV[i]) end
  end
  return {'unpinned'}
elseif op == 'rebase' then -- in twos: project, backlog by its rows
  for i = 3, #ARGV, 2 do
    local key, above = P .. 'wa:backlog:' .. gen .. ':' .. ARGV[i], P .. 'wa:above:' .. gen .. ':' .. ARGV[i]
    local have = tonumber(call('GET', key) or 0)
    local over = max(0, have - ARGV[i + 1])
    local off = min(over, tonumber(call('GET', above) or 0))
    if have > 0 then call('SET', key, have - off, 'PX', LONG) end
    if over > 0 or off > 0 then call('SET', above, over - off, 'PX', LONG) else call('DEL', above) end
  end
  return {'rebased'}
end

-- reserve and look: 3 org, 4 match key, 5 ms of affinity, 6 strategy, 7 dice, 8 lapses after s, 9 version, 10 bound,
-- 11 health floor, 12 project ('': no limits), 13 month, 14 quota, 15 backlog, 16-21 rate and burst of project, org, fleet,
-- 22-25 what is moved: session, lapses, new chat, taken at, 26 budgets, 27 rates ('': none), then the sessions.
local org, key, bound = ARGV[3], ARGV[4], ARGV[10] == '1'
local looking, floorHealth = op == 'look', tonumber(ARGV[11])
local budgets, rates, first = ARGV[26], ARGV[27], 27
local n = #ARGV - first
local project, month = ARGV[12], ARGV[13]
local shared, levels = {'p:' .. project, 'o:' .. org, 'f'}, {}

-- check says whether candidate i can send. It returns why not (0: it can), the ms at which it can by waiting, what is left
-- of its hour, and its header, which it may have made exact.
local function check(i, v, health)
  if not bound and health and well(health) < floorHealth then return 1, INF, 0, v end
  local slug = ARGV[first + i]
  local c1, c2, c3, c4, new = unpack_('<I4I4I4I4B', budgets, 17 * i - 16)
  local t1, t2, t3, t4, out, chats, e2, lapse, e1, e3, e4 = 0, 0, 0, 0, 0, 0, NEVER, NEVER, NEVER, NEVER, NEVER
  if v then
    t1, t2, t3, t4, out, chats, e2, lapse, e1, e3, e4 = unpack_(HEAD, v)
    local full = t1 + out >= c1 or t3 + out >= c3 or (new == 1 and t4 + chats >= c4) or looking
    if s >= e2 or s >= lapse or (full and (s >= e1 or s >= e3 or s >= e4)) then
      v = save(slug, open(slug, v))
      t1, t2, t3, t4, out, chats, e2, lapse, e1, e3, e4 = unpack_(HEAD, v)
    end
  end
  local why, at = 0, 0
  if t1 + out >= c1 or t2 + out >= c2 or t3 + out >= c3 or (new == 1 and t4 + chats >= c4) then
    local total, caps, leaves = {t1, t2, t3, t4}, {c1, c2, c3, c4}, {e1, e2, e3, e4}
    for w = 1, 3 + new do
      local over = total[w] + (w == 4 and chats or out) - caps[w] + 1
      if over > 0 then
        if why == 0 then why = w + 1 end
        if caps[w] == 0 then
          at = INF
        elseif over == 1 and total[w] > 0 then
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
  if rates ~= '' then
    local rate, burst = unpack_('<dd', rates, 16 * i - 15)
    if rate > 0 then
      local wait = lacks(level(call('GET', T .. 's:' .. slug), rate, burst), rate)
      if wait > 0 then
        if why == 0 then why = 6 end
        at = max(at, now + wait)
      end
    end
  end
  return why, at, c2 - t2 - out, v
end

-- read fills vals with the headers, and the healths behind them, of candidates a to b.
local function read(vals, healths, a, b)
  local keys, k = {}, b - a + 1
  for i = 1, k do keys[i] = B .. ARGV[first + a - 1 + i] end
  if not bound then
    local H = P .. 'wa:health:'
    for i = 1, k do keys[k + i] = H .. ARGV[first + a - 1 + i] end
  end
  local got = call('MGET', unpack(keys))
  for i = 1, k do
    vals[a - 1 + i] = got[i]
    healths[a - 1 + i] = got[k + i]
  end
end

local vals, healths, read_all = {}, {}, false
local function readAll()
  if read_all then return end
  read_all = true
  for a = 1, n, 1000 do read(vals, healths, a, min(n, a + 999)) end
end

-- decide returns the verdict, then what goes with it: the winner and whether it was pinned, or the wait and the reasons.
local function decide()
  if ARGV[9] ~= '0' then
    local v = tonumber(call('GET', P .. 'wa:config:' .. org) or 0)
    if v ~= tonumber(ARGV[9]) then return 'stale', v end
  end
  if project ~= '' then
    local wait = 0
    for b = 1, 3 do
      local rate, burst = tonumber(ARGV[14 + 2 * b]), tonumber(ARGV[15 + 2 * b])
      if rate > 0 then
        levels[b] = level(call('GET', T .. shared[b]), rate, burst)
        wait = max(wait, lacks(levels[b], rate))
      end
    end
    if wait > 0 then return 'rated', wait end
    local quota, backlog = tonumber(ARGV[14]), tonumber(ARGV[15])
    if month ~= '' and quota > 0 and tonumber(call('GET', P .. 'wa:quota:' .. gen .. ':' .. project .. ':' .. month) or 0) >= quota then
      return 'overdrawn', 0
    end
    if backlog > 0 and tonumber(call('GET', P .. 'wa:backlog:' .. gen .. ':' .. project) or 0) >= backlog then return 'backlog', 0 end
    if n == 0 then return 'taken', 0, false end
  end
  if key ~= '' and not bound then
    local slug = pinned(P .. 'wa:affinity:' .. org .. ':' .. key)
    for i = 1, slug and n or 0 do
      if ARGV[first + i] == slug then
        if not read_all then read(vals, healths, i, i) end
        local why, _, _, v = check(i, vals[i], healths[i])
        vals[i] = v
        if why == 0 then return 'taken', i, true end
        break
      end
    end
  end
  readAll()
  local frees, lefts, whys, k, total, soon = {}, {}, {}, 0, 0, INF
  for i = 1, n do
    local why, at, left, v = check(i, vals[i], healths[i])
    vals[i], whys[i] = v, why
    if why == 0 then
      k = k + 1
      frees[k], lefts[k], total = i, left, total + left
    else
      soon = min(soon, at)
    end
  end
  if k == 0 then
    for i = 1, n do whys[i] = string.char(whys[i]) end
    if soon == INF then return 'ineligible', 0, table.concat(whys) end
    return 'exhausted', soon - now, table.concat(whys)
  end
  local at = k
  if ARGV[6] == 'priority' then
    at = 1
  elseif ARGV[6] == 'round-robin' then
    at = tonumber(call('GET', P .. 'wa:turn:' .. org) or 0) % k + 1
  else
    local x = floor(tonumber(ARGV[7]) * total)
    for i = 1, k do
      x = x - lefts[i]
      if x < 0 then
        at = i
        break
      end
    end
  end
  return 'taken', frees[at], false
end

if looking then
  readAll()
  local verdict, a, b = decide()
  local out = {}
  for i = 1, n do
    local why, _, _, v = check(i, vals[i], healths[i])
    local t1, t2, t3, t4, o, chats = 0, 0, 0, 0, 0, 0
    if why == 1 and v then v = save(ARGV[first + i], open(ARGV[first + i], v)) end
    if v then t1, t2, t3, t4, o, chats = unpack_(HEAD, v) end
    local health = call('GET', P .. 'wa:health:' .. ARGV[first + i])
    out[i] = pack('<I4I4I4I4I4I4I4', why, t1 + o, t2 + o, t3 + o, t4 + chats, o, well(health))
  end
  return {verdict, a, b and b ~= true and b or (b and '1' or '0'), table.concat(out)}
end

local verdict, winner, more = decide()
if verdict ~= 'taken' then return {verdict, winner, more or ''} end

local lapses = 0
if winner > 0 then
  local slug = ARGV[first + winner]
  local _, _, _, _, new = unpack_('<I4I4I4I4B', budgets, 17 * winner - 16)
  local wait = tonumber(ARGV[8])
  local step = wait > 3600 and 3600 or 60
  lapses = (floor((s + wait) / step) + 1) * step
  call('SET', B .. slug, hold(vals[winner], lapses, new), 'PX', KEEP)
  if rates ~= '' then
    local rate, burst = unpack_('<dd', rates, 16 * winner - 15)
    if rate > 0 then pour('s:' .. slug, level(call('GET', T .. 's:' .. slug), rate, burst) - 1, rate, burst) end
  end
  if not bound then
    if ARGV[6] == 'round-robin' and not more then call('INCR', P .. 'wa:turn:' .. org) end
    if key ~= '' then pin(P .. 'wa:affinity:' .. org .. ':' .. key, slug, now + ARGV[5]) end
  end
end
if project ~= '' then
  for b = 1, 3 do
    if levels[b] then pour(shared[b], levels[b] - 1, tonumber(ARGV[14 + 2 * b]), tonumber(ARGV[15 + 2 * b])) end
  end
  local backlog = P .. 'wa:backlog:' .. gen .. ':' .. project
  call('INCR', backlog)
  call('PEXPIRE', backlog, LONG)
  if month ~= '' then
    local quota = P .. 'wa:quota:' .. gen .. ':' .. project .. ':' .. month
    call('INCR', quota)
    call('PEXPIRE', quota, LONG)
  end
end
if ARGV[22] ~= '' then
  local slug = ARGV[22]
  local a = open(slug, call('GET', B .. slug))
  free(a, tonumber(ARGV[23]), tonumber(ARGV[24]))
  save(slug, a)
  refill('s:' .. slug, tonumber(ARGV[25]))
end
return {'taken', winner, more and 1 or 0, tonumber(gen), now, lapses}
