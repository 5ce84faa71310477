-- Wireshark dissector for DTA: reports of version 0 and 1 with all primitives, and NACKs.
--
-- Put this file into a plugin folder of Wireshark (Help, About, Folders, Personal Lua Plugins), or give it to
-- one run: tshark -X lua_script:dta.lua -r FILE. The formats are those of docs/wire-format.md, and so are the names of
-- what is wrong with a packet that is none.

local dta = Proto("dta", "Direct Telemetry Access")

local OPCODES = {
    [1] = "Key-Write", [2] = "Append", [3] = "Key-Increment", [4] = "Postcarding", [5] = "Sketch-Merge",
}
local PROTOCOLS = {
    [1] = "icmp", [2] = "igmp", [6] = "tcp", [17] = "udp", [47] = "gre", [50] = "esp", [51] = "ah",
    [58] = "icmp6", [89] = "ospf", [132] = "sctp",
}
local MAX_HOPS = 14
local MAX_ROWS = 4
local VALUE_LEN = { least = 4, most = 60 }
local NACK_LEN = { [0] = 2, [1] = 12 }

local f = {
    message = ProtoField.string("dta.message", "Message"),
    opcode = ProtoField.uint8("dta.opcode", "Opcode", base.DEC, OPCODES),
    sequence_low = ProtoField.uint8("dta.sequence_low", "Sequence, low 8 bits"),
    flags = ProtoField.uint8("dta.flags", "Flags", base.HEX),
    immediate = ProtoField.bool("dta.flags.immediate", "Immediate", 8, nil, 0x80),
    retransmittable = ProtoField.bool("dta.flags.retransmittable", "Retransmittable", 8, nil, 0x40),
    restarted = ProtoField.bool("dta.flags.restarted", "Restarted", 8, nil, 0x20),
    nack = ProtoField.bool("dta.flags.nack", "NACK", 8, nil, 0x80),
    version = ProtoField.uint8("dta.version", "Version", base.DEC, nil, 0x03),
    store = ProtoField.uint16("dta.store", "Store"),
    reporter = ProtoField.uint16("dta.reporter", "Reporter"),
    sequence = ProtoField.uint32("dta.sequence", "Sequence"),
    redundancy = ProtoField.uint8("dta.redundancy", "Redundancy"),
    key = ProtoField.bytes("dta.key", "Key"),
    key_text = ProtoField.string("dta.key.text", "Key as text"),
    value = ProtoField.bytes("dta.value", "Value"),
    list = ProtoField.uint32("dta.list", "List"),
    delta = ProtoField.uint64("dta.delta", "Delta"),
    hop = ProtoField.uint8("dta.hop", "Hop, from 0"),
    path_length = ProtoField.uint8("dta.path_length", "Path length (0 = unknown)"),
    epoch = ProtoField.uint32("dta.epoch", "Epoch"),
    column = ProtoField.uint32("dta.column", "Column"),
    cell = ProtoField.uint32("dta.cell", "Cell"),
    first = ProtoField.uint32("dta.nack.first", "First sequence that is missing"),
    count = ProtoField.uint16("dta.nack.count", "How many are missing"),
}
for _, field in pairs(f) do
    table.insert(dta.fields, field)
end

local malformed =
    ProtoExpert.new("dta.malformed", "No DTA message", expert.group.MALFORMED, expert.severity.ERROR)
local cut = ProtoExpert.new("dta.cut", "The capture has a part of it", expert.group.UNDECODED, expert.severity.NOTE)
dta.experts = { malformed, cut }

dta.prefs.ports = Pref.range("UDP ports of translators", "40040", "Where reports go to and NACKs come from", 65535)
dta.prefs.nack_ports =
    Pref.range("UDP ports of version-0 NACKs", "40044", "Where NACKs go to that are of version 0", 65535)

-- Whether a port is in a range of the preferences, such as 40040,50000-50010.
local function is_in(port, ranges)
    for first, last in ranges:gmatch("(%d+)%-?(%d*)") do
        local low = tonumber(first)
        if port >= low and port <= (tonumber(last) or low) then
            return true
        end
    end
    return false
end

-- Ends the dissection: what is wrong in which field, that many bytes behind the start.
local function wrong(field, offset, what)
    error({ field = field, offset = offset, what = what }, 0)
end

-- The fields of a message, one behind the other.
local Cursor = {}
Cursor.__index = Cursor

function Cursor.new(tvb, tree, at)
    return setmetatable({ tvb = tvb, tree = tree, at = at }, Cursor)
end

function Cursor:left()
    return self.tvb:len() - self.at
end

-- The next bytes, which belong to a field.
function Cursor:take(name, len)
    if self:left() < len then
        wrong(name, self.at, string.format("ends after %d of %d bytes", self:left(), len))
    end
    local range = self.tvb(self.at, len)
    self.at = self.at + len
    return range
end

function Cursor:add(name, len)
    local range = self:take(name, len)
    self.tree:add(f[name], range)
    return range
end

-- A key as a flow, if it is one of IPv4, else as hex digits.
local function key_text(bytes)
    local b = { bytes:get_index(12), bytes:get_index(13), bytes:get_index(14), bytes:get_index(15) }
    if b[1] == 0 or b[2] ~= 0 or b[3] ~= 0 or b[4] ~= 0 then
        return bytes:tohex(true)
    end
    local function address(at)
        return string.format(
            "%d.%d.%d.%d", bytes:get_index(at), bytes:get_index(at + 1), bytes:get_index(at + 2), bytes:get_index(at + 3)
        )
    end
    local function port(at)
        return 256 * bytes:get_index(at) + bytes:get_index(at + 1)
    end
    local protocol = PROTOCOLS[b[1]] or tostring(b[1])
    return string.format("%s:%d->%s:%d/%s", address(0), port(8), address(4), port(10), protocol)
end

-- A key of 4 or 16 bytes; the short one is followed by zeros.
function Cursor:key(len)
    local range = self:add("key", len)
    local whole = range:bytes()
    whole:set_size(16)
    for at = len, 15 do
        whole:set_index(at, 0)
    end
    local text = key_text(whole)
    self.tree:add(f.key_text, range, text):set_generated()
    return text
end

local function add_redundancy(tree, range)
    local item = tree:add(f.redundancy, range)
    if range:uint() == 0 then
        item:append_text(" (as many copies as the store has)")
    end
end

-- All that is left, as a value.
function Cursor:value()
    local len = self:left()
    if len < VALUE_LEN.least or len > VALUE_LEN.most or len % 4 ~= 0 then
        wrong("value", self.at, string.format("has %d bytes, not 4 to 60 and a multiple of 4", len))
    end
    self:add("value", len)
end

function Cursor:finish()
    if self:left() > 0 then
        wrong("end", self.at, string.format("has %d bytes behind it", self:left()))
    end
end

local function add_flags(tree, range, names)
    local flags = tree:add(f.flags, range)
    for _, name in ipairs(names) do
        flags:add(f[name], range)
    end
    flags:add(f.version, range)
end

-- The fields of each primitive behind the first 3 bytes of version 0: their length, and how they are added. Each gives
-- words for the packet list.
local version0 = {
    [1] = { name = "key-write", len = 9, add = function(c)
        add_redundancy(c.tree, c:take("redundancy", 1))
        local key = c:key(4)
        c:add("value", 4)
        return key
    end },
    [2] = { name = "append", len = 8, add = function(c)
        local list = c:add("list", 4)
        c:add("value", 4)
        return "list " .. list:uint()
    end },
    [3] = { name = "key-increment", len = 13, add = function(c)
        add_redundancy(c.tree, c:take("redundancy", 1))
        local key = c:key(4)
        c:add("delta", 8)
        return key
    end },
    [4] = { name = "postcard", len = 9, add = function(c)
        local key = c:key(4)
        local hop = c:take("hop", 1)
        -- On the wire the first hop is 1.
        if hop:uint() < 1 or hop:uint() > MAX_HOPS then
            wrong("hop", 7, string.format("is %d, not 1 to 14", hop:uint()))
        end
        c.tree:add(f.hop, hop, hop:uint() - 1)
        c.tree:add(f.path_length, hop, 0):set_generated()
        c:add("value", 4)
        return string.format("%s hop %d", key, hop:uint() - 1)
    end },
}

-- The fields of each primitive behind the header of version 1; `argument` is byte 3.
local version1 = {
    [1] = function(c, argument)
        add_redundancy(c.tree, argument)
        local key = c:key(16)
        c:value()
        return key
    end,
    [2] = function(c)
        local list = c:add("list", 4)
        c:value()
        return "list " .. list:uint()
    end,
    [3] = function(c, argument)
        add_redundancy(c.tree, argument)
        local key = c:key(16)
        c:add("delta", 8)
        c:finish()
        return key
    end,
    [4] = function(c, argument)
        local path_length, hop = argument:bitfield(0, 4), argument:bitfield(4, 4)
        if hop >= MAX_HOPS then
            wrong("hop", 3, string.format("is %d, not 0 to 13", hop))
        end
        if path_length ~= 0 and (path_length <= hop or path_length > MAX_HOPS) then
            wrong("path_length", 3, string.format("is %d, neither unknown (0) nor %d to 14", path_length, hop + 1))
        end
        c.tree:add(f.hop, argument, hop)
        c.tree:add(f.path_length, argument, path_length)
        local key = c:key(16)
        c:add("value", 4)
        c:finish()
        return string.format("%s hop %d", key, hop)
    end,
    [5] = function(c)
        local epoch, column = c:add("epoch", 4), c:add("column", 4)
        local len = c:left()
        if len < 4 or len > 4 * MAX_ROWS or len % 4 ~= 0 then
            wrong("cells", c.at, string.format("have %d bytes, not those of 1 to 4 rows", len))
        end
        while c:left() > 0 do
            c:add("cell", 4)
        end
        return string.format("epoch %d column %d", epoch:uint(), column:uint())
    end,
}

local REPORT_FLAGS = { "immediate", "retransmittable", "restarted" }

local function report(tvb, tree)
    if tvb:len() < 3 then
        wrong("header", 0, string.format("has %d bytes, not 3", tvb:len()))
    end
    local opcode, low, version = tvb(0, 1):uint(), tvb(1, 1):uint(), tvb(2, 1):bitfield(6, 2)
    tree:add(f.opcode, tvb(0, 1))
    tree:add(f.sequence_low, tvb(1, 1))
    add_flags(tree, tvb(2, 1), REPORT_FLAGS)
    local name = OPCODES[opcode]
    if version == 0 then
        local body = version0[opcode]
        if body == nil then
            wrong("opcode", 0, string.format("is %d, not 1 to 4", opcode))
        end
        local len = tvb:len() - 3
        if len < body.len then
            wrong(body.name, 3, string.format("ends after %d of %d bytes", len, body.len))
        elseif len > body.len then
            wrong(body.name, 3 + body.len, string.format("has %d bytes behind it", len - body.len))
        end
        tree:add(f.sequence, tvb(1, 1), low):set_generated()
        return string.format("%s %s, version 0, sequence %d", name, body.add(Cursor.new(tvb, tree, 3)), low)
    elseif version ~= 1 then
        wrong("version", 2, string.format("is %d, not 0 or 1", version))
    end
    if tvb:len() < 12 then
        wrong("header", 0, string.format("has %d bytes, not 12", tvb:len()))
    end
    tree:add(f.store, tvb(4, 2))
    tree:add(f.reporter, tvb(6, 2))
    tree:add(f.sequence, tvb(8, 4))
    if name == nil then
        wrong("opcode", 0, string.format("is %d, not 1 to %d", opcode, #OPCODES))
    end
    local words = version1[opcode](Cursor.new(tvb, tree, 12), tvb(3, 1))
    if low ~= tvb(11, 1):uint() then
        wrong("sequence", 1, "does not repeat the low 8 bits of the sequence")
    end
    return string.format(
        "%s %s, store %d, reporter %d, sequence %d", name, words, tvb(4, 2):uint(), tvb(6, 2):uint(), tvb(8, 4):uint()
    )
end

local function nack(tvb, tree)
    if tvb:len() < 2 then
        wrong("header", 0, string.format("has %d bytes, not 2", tvb:len()))
    end
    local low, version = tvb(0, 1):uint(), tvb(1, 1):bitfield(6, 2)
    tree:add(f.sequence_low, tvb(0, 1))
    add_flags(tree, tvb(1, 1), { "nack" })
    if tvb(1, 1):bitfield(0, 1) == 0 then
        wrong("nack", 1, "is not set")
    end
    local len = NACK_LEN[version]
    if len == nil then
        wrong("version", 1, string.format("is %d, not 0 or 1", version))
    elseif tvb:len() > len then
        wrong("end", len, string.format("has %d bytes behind it", tvb:len() - len))
    elseif tvb:len() < len then
        wrong("body", 2, string.format("ends after %d of %d bytes", tvb:len(), len))
    end
    if version == 0 then
        tree:add(f.first, tvb(0, 1), low):set_generated()
        tree:add(f.count, tvb(0, 1), 1):set_generated()
        return string.format("NACK, version 0, sequence %d", low)
    end
    tree:add(f.reporter, tvb(2, 2))
    tree:add(f.first, tvb(4, 4))
    tree:add(f.count, tvb(8, 2))
    if low ~= tvb(7, 1):uint() then
        wrong("sequence", 0, "is not the low 8 bits of the first sequence")
    end
    local count = tvb(8, 2):uint()
    if count == 0 then
        wrong("count", 8, "is 0")
    end
    return string.format("NACK, reporter %d, %d from sequence %d", tvb(2, 2):uint(), count, tvb(4, 4):uint())
end

function dta.dissector(tvb, pinfo, root)
    local is_report = is_in(pinfo.dst_port, dta.prefs.ports)
    local is_nack = not is_report
        and (is_in(pinfo.src_port, dta.prefs.ports) or is_in(pinfo.dst_port, dta.prefs.nack_ports))
    local decode, kind = report, "Report"
    if is_nack then
        decode, kind = nack, "NACK"
    end
    pinfo.cols.protocol = "DTA"
    local tree = root:add(dta, tvb())
    tree:add(f.message, kind):set_generated()
    local good, words = pcall(decode, tvb, tree)
    if not good then
        -- What is no table is a fault of this file.
        if type(words) ~= "table" then
            error(words, 0)
        end
        if tvb:captured_len() < tvb:reported_len() then
            words = "cut by the capture"
            tree:add_proto_expert_info(cut)
        else
            words = string.format("%s at byte %d: %s", words.field, words.offset, words.what)
            tree:add_proto_expert_info(malformed, words)
            words = "Malformed: " .. words
        end
    end
    pinfo.cols.info = words
    tree:append_text(", " .. words)
    return tvb:len()
end

-- Reports and NACKs of other ports than these are shown with "Decode As".
local ports = DissectorTable.get("udp.port")
local added = {}

local function listen()
    for _, range in ipairs(added) do
        ports:remove(range, dta)
    end
    added = {}
    for _, range in ipairs({ dta.prefs.ports, dta.prefs.nack_ports }) do
        if range ~= "" then
            ports:add(range, dta)
            table.insert(added, range)
        end
    end
end

dta.prefs_changed = listen
listen()
