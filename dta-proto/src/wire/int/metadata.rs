//! What one node said of itself: a view over the bytes of one hop, and where in them each field is.

use super::IntVersion;

/// A field that a node can tell of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Item {
    Switch,
    Ports,
    Latency,
    Queue,
    IngressTime,
    EgressTime,
    Congestion,
    Level2Ports,
    Utilization,
    Buffer,
    Drop,
    /// Bytes that nothing is read from: the checksum complement and reserved instructions.
    Skipped,
}

const ITEMS: usize = Item::Skipped as usize;
/// The field is not there.
const ABSENT: u8 = 0xff;

/// How the bits of an instruction bitmap are meant: the field of each bit, and which take 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instructions {
    pub(super) items: [Item; 16],
    /// Bits, as in the bitmap, that take 8 bytes; all others take 4.
    pub(super) wide: u16,
}

/// Bit 4 and 5 of an instruction bitmap: both timestamps.
pub(super) const TIMES: u16 = 0x0c00;
/// Bit 6 of an instruction bitmap.
pub(super) const BIT_6: u16 = 0x0200;

impl Instructions {
    pub(super) const fn of(version: IntVersion) -> Instructions {
        use Item::*;
        let mut items = [Skipped; 16];
        let first = [Switch, Ports, Latency, Queue, IngressTime, EgressTime, Level2Ports, Utilization];
        let mut bit = 0;
        while bit < first.len() {
            items[bit] = first[bit];
            bit += 1;
        }
        match version {
            IntVersion::V05 => {
                items[6] = Congestion;
                Instructions { items, wide: 0 }
            }
            IntVersion::V10 => Instructions { items, wide: BIT_6 },
            IntVersion::V21 => {
                items[8] = Buffer;
                Instructions { items, wide: TIMES | BIT_6 }
            }
        }
    }

    /// The metadata bits of a Telemetry Report of version 2.0: those of INT v2.1, but bit 0 is
    /// reserved (the group header has the node) and bit 15 is the drop reason.
    pub(super) const fn of_report_v20() -> Instructions {
        let mut same = Instructions::of(IntVersion::V21);
        same.items[0] = Item::Skipped;
        same.items[15] = Item::Drop;
        same
    }

    /// The six metadata bits of a Telemetry Report of version 1.0, at the top of a bitmap.
    pub(super) const fn of_report_v10() -> Instructions {
        use Item::*;
        let mut items = [Skipped; 16];
        let first = [Ports, Latency, Queue, EgressTime, Drop, Utilization];
        let mut bit = 0;
        while bit < first.len() {
            items[bit] = first[bit];
            bit += 1;
        }
        Instructions { items, wide: 0 }
    }

    /// Bit 6 as in INT v0.5, where an instruction bitmap of v1.0 leaves 4 bytes for it.
    pub(super) const fn with_congestion(mut self) -> Instructions {
        self.items[6] = Item::Congestion;
        self.wide &= !BIT_6;
        self
    }

    /// Words of 4 bytes that a bitmap asks for.
    pub(super) const fn words(&self, bitmap: u16) -> u32 {
        bitmap.count_ones() + (bitmap & self.wide).count_ones()
    }
}

/// Where each field lies in the bytes of one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    at: [u8; ITEMS],
    /// Timestamps have 64 bits.
    wide_times: bool,
    /// The queue's number and its value have 16 bits each, not 8 and 24.
    halved_queue: bool,
}

impl Layout {
    /// No field.
    pub(super) const NONE: Layout = Layout { at: [ABSENT; ITEMS], wide_times: false, halved_queue: false };

    /// With a field at an offset, which is at most 250.
    pub(super) const fn with(mut self, item: Item, at: u8) -> Layout {
        self.at[item as usize] = at;
        self
    }

    /// Without a field.
    pub(super) const fn without(self, item: Item) -> Layout {
        self.with(item, ABSENT)
    }

    /// With queue fields of 16 and 16 bits.
    pub(super) const fn with_halved_queue(mut self, halved: bool) -> Layout {
        self.halved_queue = halved;
        self
    }

    /// The fields that a bitmap asks for, from an offset on. Fields beyond 250 bytes are left out;
    /// no format has so many.
    pub(super) fn of(instructions: &Instructions, bitmap: u16, from: u8) -> Layout {
        let mut layout = Layout::NONE;
        layout.wide_times = instructions.wide & TIMES != 0;
        let (mut rest, mut at) = (bitmap, from);
        while rest != 0 {
            let bit = rest.leading_zeros() as usize;
            let mask = 0x8000 >> bit;
            rest &= !mask;
            let item = instructions.items[bit];
            if item != Item::Skipped && at < ABSENT - 8 {
                layout.at[item as usize] = at;
            }
            at = at.saturating_add(if instructions.wide & mask != 0 { 8 } else { 4 });
        }
        layout
    }
}

/// A moment as a node's clock has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Nanoseconds modulo 2^32: they wrap every 4.29 s.
    Short(u32),
    /// Nanoseconds from an unknown point.
    Long(u64),
}

impl Time {
    /// Nanoseconds from `earlier` to this moment. Modulo 2^32 where one of both has only 32 bits;
    /// `None` where both have 64 and the other is later.
    pub fn since(self, earlier: Time) -> Option<u64> {
        match (earlier, self) {
            (Time::Long(earlier), Time::Long(this)) => this.checked_sub(earlier),
            (earlier, this) => Some(this.low().wrapping_sub(earlier.low()).into()),
        }
    }

    /// The low 32 bits.
    pub const fn low(self) -> u32 {
        match self {
            Time::Short(time) => time,
            Time::Long(time) => time as u32,
        }
    }

    /// The number as it was sent.
    pub const fn raw(self) -> u64 {
        match self {
            Time::Short(time) => time as u64,
            Time::Long(time) => time,
        }
    }
}

/// A queue or buffer: its number, and how full it is. Either can be unavailable by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Its number.
    pub id: Option<u32>,
    /// Occupancy, or the congestion status, in the node's unit.
    pub value: Option<u32>,
}

/// What one node said of itself. No accessor can panic; each gives `None` where the field was not
/// sent or is all ones, which means "not available".
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

/// A field of 16 bits, unless it is all ones.
const fn half(value: u32) -> Option<u32> {
    if value == 0xffff { None } else { Some(value) }
}

impl<'a> Metadata<'a> {
    pub(super) const fn new(bytes: &'a [u8], layout: Layout) -> Metadata<'a> {
        Metadata { bytes, layout }
    }

    #[inline]
    fn has(&self, item: Item) -> bool {
        self.layout.at[item as usize] != ABSENT
    }

    #[inline]
    fn word_at(&self, item: Item, more: usize) -> Option<u32> {
        let at = self.layout.at[item as usize];
        if at == ABSENT {
            return None;
        }
        let bytes = self.bytes.get(usize::from(at) + more..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    }

    /// A field of 32 bits.
    #[inline]
    fn word(&self, item: Item) -> Option<u32> {
        self.word_at(item, 0).filter(|word| *word != u32::MAX)
    }

    #[inline]
    fn fill(&self, item: Item) -> Fill {
        let Some(word) = self.word_at(item, 0) else { return Fill::default() };
        if self.layout.halved_queue {
            return Fill { id: half(word >> 16), value: half(word & 0xffff) };
        }
        let (id, value) = (word >> 24, word & 0x00ff_ffff);
        Fill { id: (id != 0xff).then_some(id), value: (value != 0x00ff_ffff).then_some(value) }
    }

    #[inline]
    fn time(&self, item: Item) -> Option<Time> {
        if !self.layout.wide_times {
            return self.word(item).map(Time::Short);
        }
        let time = u64::from(self.word_at(item, 0)?) << 32 | u64::from(self.word_at(item, 4)?);
        (time != u64::MAX).then_some(Time::Long(time))
    }

    /// Whether anything but the moment of arrival is told, so that this is a hop.
    pub fn is_hop(&self) -> bool {
        use Item::*;
        [Ports, Latency, Queue, EgressTime, Congestion, Level2Ports, Utilization, Buffer]
            .into_iter()
            .any(|item| self.has(item))
    }

    /// Number of the switch (node).
    #[inline]
    pub fn switch(&self) -> Option<u32> {
        self.word(Item::Switch)
    }

    /// Port that the packet came in at: the level-1 (physical) one, or where only that was sent, the
    /// level-2 (logical) one.
    #[inline]
    pub fn ingress_port(&self) -> Option<u32> {
        match self.word_at(Item::Ports, 0) {
            Some(ports) => half(ports >> 16),
            None => self.word(Item::Level2Ports),
        }
    }

    /// Port that the packet left by, as [`Metadata::ingress_port`].
    #[inline]
    pub fn egress_port(&self) -> Option<u32> {
        match self.word_at(Item::Ports, 0) {
            Some(ports) => half(ports & 0xffff),
            None => self.word_at(Item::Level2Ports, 4).filter(|port| *port != u32::MAX),
        }
    }

    /// Level-2 (logical) port that the packet came in at.
    #[inline]
    pub fn ingress_port_level2(&self) -> Option<u32> {
        self.word(Item::Level2Ports)
    }

    /// Level-2 (logical) port that the packet left by.
    #[inline]
    pub fn egress_port_level2(&self) -> Option<u32> {
        self.word_at(Item::Level2Ports, 4).filter(|port| *port != u32::MAX)
    }

    /// Nanoseconds in the node: as it says, else from both timestamps.
    #[inline]
    pub fn latency(&self) -> Option<u64> {
        match self.word(Item::Latency) {
            Some(latency) => Some(latency.into()),
            None => self.egress_time()?.since(self.ingress_time()?),
        }
    }

    /// Queue that the packet waited in, and its occupancy.
    #[inline]
    pub fn queue(&self) -> Fill {
        self.fill(Item::Queue)
    }

    /// Queue and its congestion status (INT v0.5).
    #[inline]
    pub fn congestion(&self) -> Fill {
        self.fill(Item::Congestion)
    }

    /// Buffer and its occupancy (version 2: 8 and 24 bits).
    #[inline]
    pub fn buffer(&self) -> Fill {
        self.fill(Item::Buffer)
    }

    /// When the packet came.
    #[inline]
    pub fn ingress_time(&self) -> Option<Time> {
        self.time(Item::IngressTime)
    }

    /// When the packet left.
    #[inline]
    pub fn egress_time(&self) -> Option<Time> {
        self.time(Item::EgressTime)
    }

    /// Utilisation of the port that the packet left by, in the node's unit.
    #[inline]
    pub fn utilization(&self) -> Option<u32> {
        self.word(Item::Utilization)
    }

    /// Why the packet was dropped: see [`super::drop_reason`]. `None` where no packet was.
    #[inline]
    pub fn drop_reason(&self) -> Option<u8> {
        Some((self.word_at(Item::Drop, 0)? >> 16) as u8)
    }

    /// The queue in which the packet was dropped.
    #[inline]
    pub fn drop_queue(&self) -> Option<u8> {
        let queue = (self.word_at(Item::Drop, 0)? >> 24) as u8;
        (queue != 0xff).then_some(queue)
    }
}
