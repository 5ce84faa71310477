//! Why reports were not taken, thrown away or lost. The data plane has one number for each.

use super::values;
use crate::wire::int::IOAM;
use crate::wire::{Error, Kind, Layer};

values! {
    /// Why a report was not taken: `dropped.REASON`.
    Reason {
        Header = "header", "IPv4 or UDP header not whole or of another length, a fragment, not UDP";
        Checksum = "checksum", "UDP checksum wrong (there is none to check behind a UDP socket: the kernel has)";
        Version = "version", "a DTA version that does not exist";
        Opcode = "opcode", "a primitive that the DTA version does not have";
        Length = "length", "shorter or longer than its primitive";
        Field = "field", "a field holds what its primitive does not allow";
        Version0Store = "version0_store", "version 0, and no store is named for its primitive";
        UnknownStore = "unknown_store", "no store of this id, or one of a collector that has not answered since the translator started";
        WrongPrimitive = "wrong_primitive", "a store of another primitive";
        ListRange = "list_range", "a list that the store does not have";
        ListNotOwned = "list_not_owned", "a list that another translator owns";
        Redundancy = "redundancy", "more copies than the store has; for a counter, any other number";
        ValueLength = "value_length",
            "longer than the store's value (a shorter one is filled up with zeros); for a list or sketch, not exactly its length";
        Hop = "hop", "a hop beyond the path, or the store's rows";
        PathLength = "path_length", "a path longer than the store's rows";
        Column = "column", "beyond the sketch";
        EpochOld = "epoch_old", "an epoch that has left the sketch's ring";
        EpochAhead = "epoch_ahead",
            "an epoch more than a ring ahead of the newest, which nobody else confirms: it takes a report of another reporter, or 64 of one in a row, to move the sketch that far";
        DuplicateColumn = "duplicate_column", "the reporter's column of this epoch was merged before";
        SketchReporters = "sketch_reporters",
            "more reporters on one sketch than its bitmap has bits (32), all of them with several columns in the ring";
        Reporters = "reporters",
            "more reporters than the translator keeps windows for (`limits.reporters`), all of them heard more than once and in the last 30 s";
        NotListed = "reporter_not_listed",
            "the configuration lists reporters (`[[translator.reporters]]`), and not this one at this address";
        Duplicate = "duplicate", "its sequence was seen before";
        OutOfWindow = "out_of_window", "its sequence is 1,024 or more behind the newest";
        LatePostcard = "late_postcard",
            "a postcard that is older than the path of its key that left last, or the same again: taken, it would have replaced the path by a part of it";
        NoBucket = "no_bucket",
            "several collectors share the keys of its store, and the one that has this key's bucket has not answered since the translator started, or none has it";
        NoQueuePair = "no_queue_pair",
            "there is no session with the collector that has this store, key or list: not yet, or it ended and the collector does not let the translator in again";
    }
}

impl Reason {
    /// What to do about it, in words that go on behind the meaning.
    pub const fn advice(self) -> &'static str {
        use Reason as R;
        match self {
            R::Header | R::Checksum => {
                "something on the way damages or cuts off datagrams, or something else than DTA is sent to this port"
            }
            R::Version | R::Opcode | R::Length | R::Field => {
                "the reporter speaks another version of DTA, or something else is sent to this port"
            }
            R::Version0Store => {
                "name the store under [translator.version0], or let the reporter send version 1"
            }
            R::UnknownStore => {
                "`dta-collector stores` lists stores and their ids: give the reporter one of them, or add the store"
            }
            R::WrongPrimitive => {
                "`dta-collector stores` says which store takes which primitive: give the reporter another store"
            }
            R::ListRange => "let the reporter use a list that the store has, or give the store more lists",
            R::ListNotOwned => {
                "report to the translator that owns the list (`dta-collector sessions`), or ask for it in `lists`"
            }
            R::Redundancy => "let the reporter ask for 0 copies, which means as many as the store has",
            R::ValueLength | R::Hop | R::PathLength | R::Column => {
                "what the reporter sends does not fit the store's description (`dta-collector stores`): change one of the two"
            }
            R::EpochOld => "the reporter's clock is behind the others', or the sketch needs more epochs",
            R::EpochAhead => "the reporter's epochs are not those of the others: look at its clock",
            R::DuplicateColumn => "two reporters use one id, or one sends each column twice",
            R::SketchReporters => "spread the reporters over several sketches",
            R::Reporters => {
                "raise `limits.reporters`, or see who makes up reporters (docs/operating.md, Exposure)"
            }
            R::NotListed => "add it to [[translator.reporters]] with this address, if it is one of yours",
            R::Duplicate => {
                "a retransmission that was not needed, a copy made by the network, or two reporters with one id"
            }
            R::OutOfWindow => "two reporters use one id, or the network holds reports back for long",
            R::LatePostcard => "the network reorders reports by more than the flush time, or copies them",
            R::NoBucket => {
                "see why that collector does not answer, or give each of the 256 buckets to one ([[translator.collector]] with `buckets`)"
            }
            R::NoQueuePair => {
                "see why there is no session: `dta-collector sessions`, and this translator's log"
            }
        }
    }
}

values! {
    /// Why an accepted report never left: `discarded.REASON`.
    Discard {
        StoreRemoved = "store_removed",
            "held for a store or list that was taken away, or for a session that ended and was opened again after another one";
    }
}

values! {
    /// How operations were lost that had been emitted: `lost.CAUSE`, `lost_operations.CAUSE`.
    LossCause {
        QueuePairError = "queue_pair_error", "an RC responder refused them with an error NAK, twice";
        QueuePairDown = "queue_pair_down",
            "their queue pair ended before they were acknowledged, and no other took its place: the session ended, or the translator stopped";
        StoreRemoved = "store_removed", "their store was taken away before they were acknowledged";
        Unknown = "unknown",
            "FETCH_ADDs that were not acknowledged when their queue pair ended, and nobody can tell whether they were executed";
        QueueFull = "queue_full",
            "an RC queue pair had `rc.queue` operations that waited or were not acknowledged";
        Injected = "injected",
            "the fault injector of this translator's link dropped or corrupted their frames on UC (RC sends them again)";
    }
}

values! {
    /// Why a report of INT was not taken: `int.dropped.REASON`.
    IntReason {
        Version = "version", "a version of the Telemetry Report that does not exist, or not in this dialect";
        Header = "header", "the report's own header is not whole, or holds what it must not";
        Ioam = "ioam", "a report about IOAM (v2.0), whose contents no specification defines";
        Packet = "packet", "the packet that the report is about cannot be read, and nothing is said of a drop or queue";
        Stack = "stack", "the packet holds INT that is cut short, or must hold INT, and what is there contradicts itself";
    }
}

impl IntReason {
    /// The reason for an error of the decoders.
    pub fn of(error: &Error) -> IntReason {
        match (error.layer, error.kind) {
            _ if *error == IOAM => IntReason::Ioam,
            (Layer::TelemetryReport, Kind::UnknownVersion(_)) => IntReason::Version,
            (Layer::TelemetryReport, _) => IntReason::Header,
            (Layer::Int, _) => IntReason::Stack,
            _ => IntReason::Packet,
        }
    }
}
