//! Flow exports decoded to flow records: NetFlow v5, NetFlow v9, IPFIX and sFlow v5.
//!
//! The crate `netflow_parser` reads NetFlow and IPFIX, [`sflow`](crate::sflow) reads sFlow. Here is what a collector adds to
//! them: which templates, sampling rates and sequence numbers belong to whom (`domain.rs`), the few fields that are used
//! (`record.rs`, `sflow.rs`), and what is missing (`sequence.rs`). No sockets, clocks or threads. Memory is bounded: so many exporters, so many templates of each.

mod domain;
#[cfg(feature = "emit")]
pub mod emit;
mod record;
mod sampling;
mod sequence;
mod sflow;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use dta_proto::counter::gaps::GapCounters;
use dta_proto::counter::{FlowReason, translator as names};
use foldhash::fast::RandomState;

use crate::exported::Exported;
use crate::reports::ArrivalTime;
use crate::sflow::SflowDatagram;

use domain::{Domain, FlowExportHeader};

/// Nanoseconds after which a silent exporter may give its place to a new one.
const IDLE: u64 = 1_800_000_000_000;
/// Shortest time between two searches for silent exporters, as each looks at all.
const SEARCH: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowExportFormat {
    /// NetFlow v5.
    V5,
    /// NetFlow v9 (RFC 3954).
    V9,
    /// IPFIX (RFC 7011).
    Ipfix,
    /// sFlow v5.
    Sflow,
}

/// Who numbers its datagrams, and whose templates are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowExportSource {
    /// Source address of the datagrams; of sFlow, the address by which the agent names itself.
    pub exporter: IpAddr,
    pub format: FlowExportFormat,
    /// The engine's type and id (v5), the source id (v9), the observation domain (IPFIX), or the sub-agent (sFlow).
    pub domain: u32,
}

impl fmt::Display for FlowExportSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = match self.format {
            FlowExportFormat::V5 => "v5",
            FlowExportFormat::V9 => "v9",
            FlowExportFormat::Ipfix => "ipfix",
            FlowExportFormat::Sflow => "sflow",
        };
        write!(f, "{}/{format}/{}", self.exporter, self.domain)
    }
}

/// Decodes the datagrams of many exporters.
pub struct Decoder {
    domains: HashMap<FlowExportSource, Domain, RandomState>,
    limit: usize,
    datagrams: u64,
    options: u64,
    names: u64,
    interfaces: u64,
    unused: u64,
    /// What exporters that gave their places had counted.
    gone: GapCounters,
    /// When silent exporters were last searched for.
    searched: Option<u64>,
}

impl Decoder {
    /// For at most so many sources. Each may hold 32 templates of 128 fields.
    pub fn new(limit: usize) -> Decoder {
        Decoder {
            domains: HashMap::default(),
            limit,
            datagrams: 0,
            options: 0,
            names: 0,
            interfaces: 0,
            unused: 0,
            gone: GapCounters::default(),
            searched: None,
        }
    }

    /// Decodes a datagram, and hands on what it says, and the reason of each record that is none.
    pub fn decode_datagram(
        &mut self,
        at: ArrivalTime,
        from: SocketAddr,
        payload: &[u8],
        mut each: impl FnMut(Result<Exported, FlowReason>),
    ) {
        self.datagrams += 1;
        // The version has 16 bits; that of sFlow has 32.
        let read = match payload {
            [0, 0, ..] => self.decode_sflow(at, from.ip().to_canonical(), payload, &mut each),
            _ => self.decode_netflow(at, from.ip().to_canonical(), payload, &mut each),
        };
        if let Err(reason) = read {
            each(Err(reason));
        }
    }

    fn decode_netflow(
        &mut self,
        at: ArrivalTime,
        from: IpAddr,
        payload: &[u8],
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) -> Result<(), FlowReason> {
        let header = FlowExportHeader::parse_payload(from, payload)?;
        let domain = self.find_or_add_domain(at.now, header.source).ok_or(FlowReason::NoRoom)?;
        let mut names = 0;
        let options = domain.decode_datagram(at, &header, payload, &mut |one| {
            names += u64::from(matches!(one, Ok(Exported::Name(_))));
            each(one);
        });
        self.options += options;
        self.names += names;
        Ok(())
    }

    fn decode_sflow(
        &mut self,
        at: ArrivalTime,
        from: IpAddr,
        payload: &[u8],
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) -> Result<(), FlowReason> {
        let datagram =
            SflowDatagram::parse_payload(payload).map_err(|error| sflow::reason_of_error(&error))?;
        let source = sflow::datagram_source(from, &datagram);
        self.find_or_add_domain(at.now, source)
            .ok_or(FlowReason::NoRoom)?
            .note_sflow_datagram(at.now, datagram.sequence);
        for sample in datagram.samples() {
            let read = sample.map_err(|error| sflow::reason_of_error(&error));
            match read.and_then(|sample| sflow::export_from_sample(&source, at.wall, &sample)) {
                Ok(None) => self.unused += 1,
                Ok(Some(exported)) => {
                    self.interfaces += u64::from(matches!(exported, Exported::Interface(_)));
                    each(Ok(exported));
                }
                Err(reason) => each(Err(reason)),
            }
        }
        Ok(())
    }

    fn find_or_add_domain(&mut self, now: u64, source: FlowExportSource) -> Option<&mut Domain> {
        if self.domains.len() >= self.limit && !self.domains.contains_key(&source) {
            let searched = self.searched.is_some_and(|last| now.saturating_sub(last) < SEARCH);
            if searched {
                return None;
            }
            self.searched = Some(now);
            self.domains.retain(|_, domain| {
                let stays = now.saturating_sub(domain.heard) < IDLE;
                if !stays {
                    self.gone.add(&domain.gap_counters());
                }
                stays
            });
            if self.domains.len() >= self.limit {
                return None;
            }
        }
        Some(match self.domains.entry(source) {
            Entry::Occupied(place) => place.into_mut(),
            Entry::Vacant(place) => place.insert(Domain::new(source)),
        })
    }

    /// All sources, and what is missing of each.
    pub fn source_gaps(&self) -> impl Iterator<Item = (FlowExportSource, GapCounters)> {
        self.domains.iter().map(|(source, domain)| (*source, domain.gap_counters()))
    }

    pub fn templates(&self) -> u64 {
        self.domains.values().map(Domain::templates).sum()
    }

    /// Every counter by its dotted name.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let mut sum = self.gone;
        self.source_gaps().for_each(|(_, counters)| sum.add(&counters));
        let all = [
            (&names::FLOWS_DATAGRAMS, self.datagrams),
            (&names::FLOWS_OPTIONS, self.options),
            (&names::FLOWS_NAMES, self.names),
            (&names::FLOWS_INTERFACES, self.interfaces),
            (&names::FLOWS_UNUSED, self.unused),
            (&names::FLOWS_TEMPLATES, self.templates()),
            (&names::FLOWS_GAPS, sum.gaps),
            (&names::FLOWS_GAPS_FILLED, sum.gaps_filled),
            (&names::FLOWS_REPEATS, sum.repeats),
            (&names::FLOWS_RESTARTS, sum.restarts),
            (&names::FLOWS_SOURCES, self.domains.len() as u64),
        ];
        let mut named: Vec<_> = all.into_iter().map(|(name, count)| (name.format_name(&[]), count)).collect();
        named.extend(GapCounters::largest_gaps(
            self.source_gaps(),
            [&names::FLOWS_GAPS_OF, &names::FLOWS_GAPS_FILLED_OF],
        ));
        named
    }
}
