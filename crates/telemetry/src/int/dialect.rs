//! Dialects: differences between senders of reports.

use core::str::FromStr;

use super::ReportVersion;

dta_proto::named! {
    /// Senders whose bytes differ. A listener has one; [`Dialect::Auto`] guesses per datagram.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Dialect {
        /// By the first bytes of each datagram: version 0 is a Telemetry Report v0.5, 2 is v2.0; 1 is v1.0, or
        /// INTCollector's report generator, which sends 1 in v0.5 too, and a length of 1 word in v1.0.
        #[default]
        Auto: "auto",
        /// Telemetry Report v0.5 as specified.
        V05: "v0.5",
        /// Telemetry Report v1.0 as specified.
        V10: "v1.0",
        /// Telemetry Report v2.0 as specified.
        V20: "v2.0",
        /// SD-Fabric (fabric-tna): v0.5, never with INT inside.
        SdFabric: "sdfabric",
        /// INTCollector's generator: v0.5 or v1.0, always with INT inside, queue fields of 16 and 16 bits.
        IntCollector: "intcollector",
        /// GÉANT's switches: v1.0 with timestamps of 64 bits.
        Geant: "geant",
        /// NoviFlow's switches (AmLight): v1.0, INT before the TCP options, and hop latencies that are always 0
        /// and therefore computed from both timestamps.
        NoviFlow: "noviflow",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a dialect: write auto, v0.5, v1.0, v2.0, sdfabric, intcollector, geant or noviflow")]
pub struct DialectError(String);

impl FromStr for Dialect {
    type Err = DialectError;

    fn from_str(text: &str) -> Result<Dialect, DialectError> {
        Dialect::from_name(text).ok_or_else(|| DialectError(text.to_owned()))
    }
}

/// How to recognise that a packet in a report carries INT after its TCP or UDP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// By the dialect; for most that is [`Mark::Guess`].
    #[default]
    ByDialect,
    /// Whatever parses as INT without a contradiction.
    Guess,
    Always,
    Never,
    /// By the DSCP, under a mask.
    Dscp {
        /// 6 bits.
        value: u8,
        mask: u8,
    },
    /// By the UDP destination port.
    Port(u16),
    /// By these 8 bytes before the shim (the probe marker).
    Probe(u64),
}

/// How a listener parses reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntSettings {
    /// The sender.
    pub dialect: Dialect,
    /// How to recognise INT.
    pub mark: Mark,
    /// Words that only the INT source adds for its domain (v2.1); 0 = what does not fill a hop.
    pub source_only_words: u8,
}

/// What the dialect and the first bytes of a datagram determine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) version: ReportVersion,
    pub(super) mark: Mark,
    pub(super) halved_queue: bool,
    pub(super) no_latency: bool,
    /// INT before the TCP options rather than after them, if both parse.
    pub(super) before_options: bool,
    pub(super) source_only_words: u8,
    /// Only INT-MX, whose instructions are no metadata.
    pub(super) only_mx: bool,
}

impl Form {
    /// For packets that did not come in an INT report.
    pub(super) const WITHOUT_INT: Form = Form {
        version: ReportVersion::V10,
        mark: Mark::Never,
        halved_queue: false,
        no_latency: false,
        before_options: false,
        source_only_words: 0,
        only_mx: false,
    };
    /// For packets of no tracked flow, where INT is guessed.
    const UNTRACKED: Form = Form { mark: Mark::Guess, only_mx: true, ..Form::WITHOUT_INT };

    /// How to parse the packet of a report, by its F bit: where it is 0, the packet "will not" carry metadata, so
    /// that a host whose packets are dropped cannot forge paths. A sender whose packets carry INT all the same is
    /// recognized by `mark`.
    #[inline]
    pub(super) fn for_packet(&self, tracked: bool) -> &Form {
        if tracked || !self.is_guessed() { self } else { &Form::UNTRACKED }
    }

    /// Whether a packet that parses as INT carries it.
    pub(super) fn is_guessed(&self) -> bool {
        matches!(self.mark, Mark::Guess | Mark::ByDialect)
    }
}

impl IntSettings {
    /// What holds for a datagram that begins with these two bytes; `None` where the version is
    /// unknown.
    #[inline]
    pub(super) fn resolve_form(&self, first: [u8; 2]) -> Option<Form> {
        let mut form = Form {
            version: ReportVersion::V10,
            mark: Mark::Guess,
            halved_queue: false,
            no_latency: false,
            before_options: false,
            source_only_words: self.source_only_words,
            only_mx: false,
        };
        match self.dialect {
            Dialect::Auto => {
                let (version, generator) = guess_version(first)?;
                (form.version, form.halved_queue) = (version, generator);
            }
            Dialect::V05 => form.version = ReportVersion::V05,
            Dialect::V10 => {}
            Dialect::V20 => form.version = ReportVersion::V20,
            Dialect::SdFabric => {
                form.version = ReportVersion::V05;
                form.mark = Mark::Never;
            }
            Dialect::IntCollector => {
                form.version = guess_version(first).map_or(ReportVersion::V10, |(version, _)| version);
                form.mark = Mark::Always;
                form.halved_queue = true;
            }
            Dialect::Geant => {}
            Dialect::NoviFlow => {
                form.no_latency = true;
                form.before_options = true;
            }
        }
        if self.mark != Mark::ByDialect {
            form.mark = self.mark;
        }
        Some(form)
    }
}

/// The version, and whether the sender is INTCollector's generator.
///
/// If the first nibble is 1, the second is the header's length in words (v1.0: 4 to 10, and 1 from the
/// generator) or the next protocol (v0.5: 0 from the generator; 1 with the D bit, or 2). In v1.0 the top bits
/// of byte 1 are 0 to 2 and the D bit of v0.5 is never set.
fn guess_version(first: [u8; 2]) -> Option<(ReportVersion, bool)> {
    match (first[0] >> 4, first[0] & 0xf) {
        (0, _) => Some((ReportVersion::V05, false)),
        (1, 0) => Some((ReportVersion::V05, true)),
        (1, 1) if first[1] & 0x80 != 0 => Some((ReportVersion::V05, false)),
        (1, 1) => Some((ReportVersion::V10, true)),
        (1, 2) => Some((ReportVersion::V05, false)),
        (1, _) => Some((ReportVersion::V10, false)),
        (2, _) => Some((ReportVersion::V20, false)),
        _ => None,
    }
}
