-- needs base
-- The order of arrival is known when a message is published through our own transport, whichever way it then takes: publish writes its
-- arrival into its header. A producer can write there too, so the store seals what it writes, with a secret that it keeps in the field
-- `seal` of the hash config, and believes no arrival without its seal. A namespace that has no secret yet gives arrivals at the gate.
local function seal_of(id, arrival)
  local secret = call('HGET', P .. 'config', 'seal')
  return secret and string.sub(redis.sha1hex(secret .. redis.sha1hex(secret .. arrival .. ':' .. id)), 1, 20)
end

-- sealed_arrival(id, claimed): the arrival in "<arrival>-<seal>" if this namespace has given it to this ticket, else nil.
local function sealed_arrival(id, claimed)
  local arrival, seal = string.match(claimed, '^([1-9]%d*)-(%x+)$')
  return arrival and seal == seal_of(id, arrival) and arrival or nil
end
