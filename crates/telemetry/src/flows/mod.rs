//! Flow exports decoded to flow records: NetFlow v5, NetFlow v9, IPFIX and sFlow v5.
//!
//! A template is compiled once (`plan.rs`) and then run over the bytes of its records (`fields.rs`). Templates, sampling rates
//! and sequence numbers belong to a session (`session.rs`): an exporter's address and port, its format and its domain. Bytes that
//! are not read are counted by reason (`counters.rs`). No sockets, clocks or threads, and no allocation per record. Memory is
//! bounded by limits on sources, on sources per address, and on templates per source. If several threads each have a decoder, all
//! datagrams of an address go to one of them, and the decoders share their common limits (`registry.rs`).

mod counters;
#[cfg(feature = "emit")]
pub mod emit;
mod fields;
mod plan;
mod registry;
mod sampling;
mod sequence;
mod session;
mod sflow;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dta_proto::counter::gaps::GapCounters;
use dta_proto::counter::{FlowReason, translator as names};
use dta_proto::prefix::Prefix;
use foldhash::fast::RandomState;

use crate::exported::Exported;
use crate::reports::ArrivalTime;
use crate::sflow::SflowDatagram;

use plan::RunPlace;
use session::{FlowExportHeader, Session, SessionInputs};

pub use counters::DecoderCounters;
pub(crate) use fields::fill_from_packet;
pub use registry::SourceRegistry;

/// How long a source must be silent, in nanoseconds, before it may give its place to one of another address.
const IDLE: u64 = 1_800_000_000_000;
/// The same for one of its own address, and for an agent before another sender may speak for it.
const IDLE_OF_ADDRESS: u64 = 60_000_000_000;
/// Shortest time between two searches for silent sources, since each search looks at all sources.
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

/// A source numbers its datagrams and has its own templates. Several processes behind one address are one source to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowExportSource {
    /// Source address of the datagrams; in sFlow, the address by which the agent names itself.
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

/// Options of a decoder, about its exporters.
#[derive(Clone, Debug)]
pub struct DecoderOptions {
    /// Maximum number of sources followed.
    pub sources: usize,
    /// Maximum number of them with the same sender's address.
    pub sources_per_address: usize,
    /// Senders that are accepted, and sFlow agents for which any of them may speak; empty = all.
    pub allowed: Vec<Prefix>,
    /// Sampling rates of exporters that announce none. The longest prefix wins.
    pub sampling: Vec<(Prefix, u32)>,
}

impl Default for DecoderOptions {
    fn default() -> DecoderOptions {
        DecoderOptions { sources: 1024, sources_per_address: 64, allowed: Vec::new(), sampling: Vec::new() }
    }
}

/// A sender of datagrams.
#[derive(Default)]
struct Sender {
    sessions: Vec<Session>,
    /// Rates of domains, as announced by options of other domains.
    domain_rates: Vec<(u32, u32)>,
    /// The rate if none is announced; 0 = 1.
    static_rate: u32,
}

/// Decodes the datagrams of many exporters.
pub struct Decoder {
    options: DecoderOptions,
    senders: HashMap<IpAddr, Sender, RandomState>,
    registry: Arc<SourceRegistry>,
    counters: DecoderCounters,
    /// Counters of sources that gave up their places.
    gone: GapCounters,
    /// When this decoder last searched for silent sources, and the last search of any decoder that it took part in.
    searched: Option<u64>,
    search: u32,
    /// Memory for records with fields of unknown length.
    places: Vec<RunPlace>,
    /// Senders added since the last [`Decoder::take_new_senders`].
    new_senders: Vec<IpAddr>,
}

/// Maximum number of senders kept for [`Decoder::take_new_senders`].
const NEW_SENDERS: usize = 64;

impl Decoder {
    pub fn new(options: DecoderOptions) -> Decoder {
        Decoder::with_registry(options, Arc::default())
    }

    /// One of several decoders with the same options and registry.
    pub fn with_registry(options: DecoderOptions, registry: Arc<SourceRegistry>) -> Decoder {
        Decoder {
            options,
            senders: HashMap::default(),
            registry,
            counters: DecoderCounters::default(),
            gone: GapCounters::default(),
            searched: None,
            search: 0,
            places: Vec::new(),
            new_senders: Vec::new(),
        }
    }

    /// Decodes a datagram, and passes on what it says, and the reason for each part that is not read.
    pub fn decode_datagram(
        &mut self,
        at: ArrivalTime,
        from: SocketAddr,
        payload: &[u8],
        mut each: impl FnMut(Result<Exported, FlowReason>),
    ) {
        self.counters.datagrams += 1;
        self.counters.bytes += payload.len() as u64;
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        // The version has 16 bits; that of sFlow has 32.
        let refused = match payload {
            [0, 0, ..] => self.decode_sflow(at, from.ip(), payload, &mut each),
            _ => self.decode_netflow(at, from, payload, &mut each),
        };
        if let Err(reason) = refused {
            self.counters.refuse(reason, payload.len(), &mut each);
        }
    }

    /// Returns an error if nothing of the datagram was read.
    fn decode_netflow(
        &mut self,
        at: ArrivalTime,
        from: SocketAddr,
        payload: &[u8],
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) -> Result<(), FlowReason> {
        let header = FlowExportHeader::parse_payload(payload)?;
        let source = FlowExportSource { exporter: from.ip(), format: header.format, domain: header.domain };
        let index = self.find_or_add_session(at.now, from.ip(), from.port(), source)?;
        let Some(sender) = self.senders.get_mut(&from.ip()) else { return Err(FlowReason::NoRoom) };
        let mut shared = SessionInputs {
            static_rate: sender.static_rate,
            domain_rates: &mut sender.domain_rates,
            places: &mut self.places,
            counters: &mut self.counters,
        };
        sender.sessions[index].decode_datagram(at, &header, payload, &mut shared, each);
        Ok(())
    }

    /// Returns an error if nothing of the datagram was read.
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
        let is_listed = (!self.options.allowed.is_empty()).then(|| self.is_allowed(source.exporter));
        if !self.registry.may_speak(at.now, from, source.exporter, is_listed) {
            return Err(FlowReason::ForeignAgent);
        }
        let index = self.find_or_add_session(at.now, from, 0, source)?;
        let Some(sender) = self.senders.get_mut(&from) else { return Err(FlowReason::NoRoom) };
        sender.sessions[index].note_sflow_datagram(at.now, datagram.sequence, datagram.uptime);
        self.registry.note_agent(at.now, from, source.exporter);
        let static_rate = sender.static_rate;
        self.counters.note_read(datagram.header_len(payload));
        sflow::decode_samples(datagram, &source, at.wall, static_rate, &mut self.counters, each);
        Ok(())
    }

    fn is_allowed(&self, address: IpAddr) -> bool {
        self.options.allowed.is_empty() || self.options.allowed.iter().any(|prefix| prefix.contains(address))
    }

    fn static_rate_of(&self, address: IpAddr) -> u32 {
        let matching = self.options.sampling.iter().filter(|(prefix, _)| prefix.contains(address));
        matching.max_by_key(|(prefix, _)| prefix.length_in_bits()).map_or(0, |(_, rate)| *rate)
    }

    /// The session's place among those of its sender.
    fn find_or_add_session(
        &mut self,
        now: u64,
        from: IpAddr,
        port: u16,
        source: FlowExportSource,
    ) -> Result<usize, FlowReason> {
        let is_same = |session: &Session| session.port == port && session.source == source;
        let known = self.senders.get(&from);
        if let Some(index) = known.and_then(|sender| sender.sessions.iter().position(is_same)) {
            return Ok(index);
        }
        if known.is_none() && !self.is_allowed(from) {
            return Err(FlowReason::NotListed);
        }
        let own = known.map_or(0, |sender| sender.sessions.len());
        if own >= self.options.sources_per_address {
            self.remove_silent_of(now, from)?;
        }
        if !self.registry.take_place(self.options.sources) {
            self.registry.request_search();
            self.remove_silent(now);
            if !self.registry.take_place(self.options.sources) {
                return Err(FlowReason::NoRoom);
            }
        }
        let static_rate = self.static_rate_of(from);
        let sender = self.senders.entry(from).or_insert_with(|| {
            if self.new_senders.len() < NEW_SENDERS {
                self.new_senders.push(from);
            }
            Sender { static_rate, ..Sender::default() }
        });
        sender.sessions.push(Session::new(source, port));
        Ok(sender.sessions.len() - 1)
    }

    /// Removes the session of an address that has been silent for longest.
    fn remove_silent_of(&mut self, now: u64, from: IpAddr) -> Result<(), FlowReason> {
        let Some(sender) = self.senders.get_mut(&from) else { return Err(FlowReason::NoRoom) };
        let oldest = sender.sessions.iter().enumerate().min_by_key(|(_, session)| session.heard);
        let oldest = oldest.filter(|(_, session)| now.saturating_sub(session.heard) >= IDLE_OF_ADDRESS);
        let index = oldest.map(|(index, _)| index).ok_or(FlowReason::NoRoom)?;
        let removed = sender.sessions.swap_remove(index);
        self.gone.add(&removed.gap_counters());
        self.registry.give_back(1);
        self.registry.forget_agent(from, removed.source.exporter);
        Ok(())
    }

    /// Removes the sessions of all other senders: their datagrams come to other decoders from now on.
    pub fn keep_senders(&mut self, stays: impl Fn(IpAddr) -> bool) {
        let mut removed = 0;
        self.senders.retain(|address, sender| {
            let stays = stays(*address);
            if !stays {
                removed += sender.sessions.len();
                sender.sessions.iter().for_each(|session| self.gone.add(&session.gap_counters()));
            }
            stays
        });
        self.registry.give_back(removed);
    }

    /// Removes all sessions that have been silent for long, if another decoder has found no place for a source.
    pub fn take_part_in_search(&mut self, now: u64) {
        if self.search != self.registry.last_search() {
            self.remove_silent(now);
        }
    }

    /// Removes all sessions that have been silent for long, at most once in a while.
    fn remove_silent(&mut self, now: u64) {
        if self.searched.is_some_and(|last| now.saturating_sub(last) < SEARCH) {
            return;
        }
        (self.searched, self.search) = (Some(now), self.registry.last_search());
        self.remove_sessions(|session| now.saturating_sub(session.heard) < IDLE);
        self.registry.forget_silent_agents(now);
    }

    fn remove_sessions(&mut self, stays: impl Fn(&Session) -> bool) {
        let mut removed = 0;
        self.senders.retain(|_, sender| {
            sender.sessions.retain(|session| {
                let stays = stays(session);
                if !stays {
                    removed += 1;
                    self.gone.add(&session.gap_counters());
                }
                stays
            });
            !sender.sessions.is_empty()
        });
        self.registry.give_back(removed);
    }

    /// Senders added since the last call, as far as there was room to remember them.
    pub fn take_new_senders(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.new_senders)
    }

    pub fn decoder_counters(&self) -> &DecoderCounters {
        &self.counters
    }

    fn all_sessions(&self) -> impl Iterator<Item = &Session> {
        self.senders.values().flat_map(|sender| &sender.sessions)
    }

    /// All sources, and what is missing from each.
    pub fn source_gaps(&self) -> impl Iterator<Item = (FlowExportSource, GapCounters)> + use<> {
        let mut sums: HashMap<FlowExportSource, GapCounters> = HashMap::new();
        for session in self.all_sessions() {
            sums.entry(session.source).or_default().add(&session.gap_counters());
        }
        sums.into_iter()
    }

    pub fn templates(&self) -> u64 {
        self.all_sessions().map(Session::templates).sum()
    }

    /// Every counter by its dotted name.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let mut sum = self.gone;
        self.all_sessions().for_each(|session| sum.add(&session.gap_counters()));
        let more = [
            (&names::FLOWS_TEMPLATES, self.templates()),
            (&names::FLOWS_GAPS, sum.gaps),
            (&names::FLOWS_GAPS_FILLED, sum.gaps_filled),
            (&names::FLOWS_REPEATS, sum.repeats),
            (&names::FLOWS_RESTARTS, sum.restarts),
            (&names::FLOWS_SOURCES, self.all_sessions().count() as u64),
        ];
        let mut named = self.counters.named_counters();
        named.extend(more.into_iter().map(|(name, count)| (name.format_name(&[]), count)));
        named.extend(GapCounters::largest_gaps(
            self.source_gaps(),
            [&names::FLOWS_GAPS_OF, &names::FLOWS_GAPS_FILLED_OF],
        ));
        named
    }
}
