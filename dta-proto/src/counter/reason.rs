//! Why reports were rejected, discarded or lost. The data plane has one number for each.

use super::values;

values! {
    /// Why a report was rejected: `dropped.REASON`.
    Reason {
        Header = "header", "IPv4 or UDP header truncated or of the wrong length, a fragment, or not UDP";
        Checksum = "checksum", "wrong UDP checksum (not counted on UDP sockets, where the kernel checks it)";
        Version = "version", "a DTA version that does not exist";
        Opcode = "opcode", "a primitive that the DTA version does not have";
        Length = "length", "shorter or longer than its primitive requires";
        Field = "field", "a field value that its primitive does not allow";
        Version0Store = "version0_store", "version 0, and no store is configured for its primitive";
        UnknownStore = "unknown_store", "no store of this id, or one of a collector that has not answered since the translator started";
        WrongPrimitive = "wrong_primitive", "the store is for another primitive";
        ListRange = "list_range", "a list that the store does not have";
        ListNotOwned = "list_not_owned", "a list owned by another translator";
        Redundancy = "redundancy", "more copies than the store has; for a counter, any number but the store's";
        ValueLength = "value_length",
            "longer than the store's value (a shorter one is padded with zeros); for a list or sketch, not exactly its length";
        Hop = "hop", "a hop beyond the path's length or the store's rows";
        PathLength = "path_length", "a path longer than the store's rows";
        Column = "column", "a column beyond the sketch";
        EpochOld = "epoch_old", "an epoch older than the sketch's ring holds";
        EpochAhead = "epoch_ahead",
            "an epoch more than a ring ahead of the newest and unconfirmed: it takes a second reporter, or 64 reports of one in a row, to move the sketch that far";
        DuplicateColumn = "duplicate_column", "the reporter's column of this epoch was already merged";
        SketchReporters = "sketch_reporters",
            "more reporters on one sketch than its bitmap has bits (32), all with several columns in the ring";
        Reporters = "reporters",
            "more reporters than the translator keeps windows for (`limits.reporters`), all heard more than once and within the last 30 s";
        NotListed = "reporter_not_listed",
            "the configuration lists reporters (`[[translator.reporters]]`), but not this one at this address";
        Duplicate = "duplicate", "a sequence already seen";
        OutOfWindow = "out_of_window", "a sequence 1,024 or more behind or ahead of the newest";
        LatePostcard = "late_postcard",
            "a postcard older than the last path sent for its key, or a repeat of it: accepting it would replace the path by a part of it";
        NoBucket = "no_bucket",
            "several collectors share the store's keys, and the one with this key's bucket has not answered since the translator started, or none has the bucket";
        NoQueuePair = "no_queue_pair",
            "no session with the collector that has this store, key or list: not yet open, or it ended and the collector refuses the translator";
        Handover = "handover", "an event of INT or flows for the list of another worker, whose queue was full";
    }
}

impl Reason {
    /// What to do about it, to follow the meaning.
    pub const fn advice(self) -> &'static str {
        use Reason as R;
        match self {
            R::Header | R::Checksum => {
                "something on the way damages or truncates datagrams, or this port receives something other than DTA"
            }
            R::Version | R::Opcode | R::Length | R::Field => {
                "the reporter speaks another version of DTA, or this port receives something else"
            }
            R::Version0Store => {
                "name the store under [translator.version0], or make the reporter send version 1"
            }
            R::UnknownStore => {
                "`dta-collector stores` lists stores and their ids: give the reporter one of them, or add the store"
            }
            R::WrongPrimitive => {
                "`dta-collector stores` says which store takes which primitive: give the reporter another store"
            }
            R::ListRange => "make the reporter use a list that the store has, or give the store more lists",
            R::ListNotOwned => {
                "report to the translator that owns the list (`dta-collector sessions`), or ask for it in `lists`"
            }
            R::Redundancy => "make the reporter ask for 0 copies, which means as many as the store has",
            R::ValueLength | R::Hop | R::PathLength | R::Column => {
                "the reporter's data does not fit the store's description (`dta-collector stores`): change one of the two"
            }
            R::EpochOld => "the reporter's clock is behind the others', or the sketch needs more epochs",
            R::EpochAhead => "the reporter's epochs differ from the others': check its clock",
            R::DuplicateColumn => "two reporters use one id, or one sends each column twice",
            R::SketchReporters => "spread the reporters over several sketches",
            R::Reporters => {
                "raise `limits.reporters`, or find out who forges reporter ids (docs/operating.md, Exposure)"
            }
            R::NotListed => "add it to [[translator.reporters]] with this address, if it is one of yours",
            R::Duplicate => {
                "an unneeded retransmission, a copy made by the network, or two reporters with one id"
            }
            R::OutOfWindow => "two reporters use one id, or the network delays reports for long",
            R::LatePostcard => "the network reorders reports by more than the flush time, or duplicates them",
            R::NoBucket => {
                "check why that collector does not answer, or assign each of the 256 buckets to a collector ([[translator.collector]] with `buckets`)"
            }
            R::NoQueuePair => {
                "check why there is no session: `dta-collector sessions`, and this translator's log"
            }
            R::Handover => {
                "fewer workers, each on a processor of its own, or rules that report less (`[translator.int]`)"
            }
        }
    }
}

values! {
    /// Why an accepted report never left: `discarded.REASON`.
    Discard {
        StoreRemoved = "store_removed",
            "held for a store or list that was removed, or for a session that ended and reopened after another one";
    }
}

values! {
    /// How emitted operations were lost: `lost.CAUSE`, `lost_operations.CAUSE`.
    LossCause {
        QueuePairError = "queue_pair_error", "an RC responder refused them with an error NAK, twice";
        QueuePairDown = "queue_pair_down",
            "their queue pair ended before they were acknowledged and was not replaced: the session ended, or the translator stopped";
        StoreRemoved = "store_removed", "their store was removed before they were acknowledged";
        Unknown = "unknown",
            "FETCH_ADDs not acknowledged when their queue pair ended: whether they were executed is unknown";
        QueueFull = "queue_full",
            "an RC queue pair already had `rc.queue` operations waiting or unacknowledged, or the queue of the RDMA device that sends stayed full for a second";
        Injected = "injected",
            "the fault injector of this translator's link dropped or corrupted their frames on UC (RC sends them again)";
    }
}

values! {
    /// Why an INT report was rejected: `int.dropped.REASON`.
    IntReason {
        Version = "version", "a Telemetry Report version that does not exist, or not in this dialect";
        Header = "header", "the report's own header is truncated or invalid, or a length contradicts what it counts: no later report of the datagram is read then";
        Ioam = "ioam", "a report about IOAM (v2.0), whose contents no specification defines";
        Packet = "packet", "the reported packet cannot be parsed, and the report mentions no drop or queue";
        Stack = "stack", "the packet is marked as one with INT (`mark`), but has none or one that contradicts itself";
    }
}

values! {
    /// Why a flow record was rejected: `flows.dropped.REASON`.
    FlowReason {
        Version = "version", "neither NetFlow v5, v9, IPFIX nor sFlow v5";
        Malformed = "malformed", "a part of the datagram is truncated or contradicts itself, or a template is longer than 256 fields; what is before and behind it is read";
        NoTemplate = "no_template", "data whose template has not arrived yet, or was lost: counted per set, because the number of records in it is unknown";
        Enterprise = "enterprise", "a record that is no flow, and whose template has elements of a vendor's own (`flows.enterprise_sets`): reports of drops and of IFA by a switch, for example";
        NoFlow = "no_flow", "a record without addresses, or that counts nothing: of layer 2, of a session that begins, of a direction without packets; a sample of a packet without IP";
        NoStore = "no_store", "a flow record while no collector has a store `flow-records`, or none of its lists is this translator's";
        Congested = "congested", "a flow record for which the queue pair had no room";
        NoRoom = "no_room", "a datagram of an exporter that does not fit into the table (`exporters`), or of an address that has its share of it (`sources_per_address`)";
        UnknownSet = "unknown_set", "a set whose number means nothing in its format";
        Implausible = "implausible", "a record that counts more than 2^48 bytes or packets, or says that its count is unknown";
        Repeated = "repeated", "the end of a firewall's session, with the counts of the update before it";
        NotListed = "not_listed", "a datagram of a sender that is not in the list (`allowed`)";
        ForeignAgent = "foreign_agent", "a datagram of sFlow in the name of an agent for which another sender speaks, or that is not in the list (`allowed`)";
    }
}

values! {
    /// Whose elements the template of an IPFIX set has, where its records count no flows: `flows.enterprise_sets.ENTERPRISE`.
    Enterprise {
        Cisco = "cisco", "sets of IPFIX that are no flows, with elements of Cisco (private enterprise number 9)";
        Huawei = "huawei", "sets of IPFIX that are no flows, with elements of Huawei (private enterprise number 2011)";
        Juniper = "juniper", "sets of IPFIX that are no flows, with elements of Juniper (private enterprise number 2636)";
        F5 = "f5", "sets of IPFIX that are no flows, with elements of F5 (private enterprise number 3375)";
        Broadcom = "broadcom", "sets of IPFIX that are no flows, with elements of Broadcom (private enterprise number 4413)";
        Netscaler = "netscaler", "sets of IPFIX that are no flows, with elements of NetScaler (private enterprise number 5951)";
        Vmware = "vmware", "sets of IPFIX that are no flows, with elements of VMware (private enterprise number 6876)";
        Arista = "arista", "sets of IPFIX that are no flows, with elements of Arista (private enterprise number 30065)";
        Mellanox = "mellanox", "sets of IPFIX that are no flows, with elements of Mellanox (private enterprise number 33049)";
        Ntop = "ntop", "sets of IPFIX that are no flows, with elements of ntop (private enterprise number 35632)";
        Other = "other", "sets of IPFIX that are no flows, with elements of another vendor";
    }
}

impl Enterprise {
    /// By IANA's private enterprise numbers.
    pub const fn from_number(number: u32) -> Enterprise {
        match number {
            9 => Enterprise::Cisco,
            2011 => Enterprise::Huawei,
            2636 => Enterprise::Juniper,
            3375 => Enterprise::F5,
            4413 => Enterprise::Broadcom,
            5951 => Enterprise::Netscaler,
            6876 => Enterprise::Vmware,
            30065 => Enterprise::Arista,
            33049 => Enterprise::Mellanox,
            35632 => Enterprise::Ntop,
            _ => Enterprise::Other,
        }
    }
}
