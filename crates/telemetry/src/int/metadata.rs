//! Metadata of one node: a view of one hop's bytes, and the offsets of its fields.

use dta_proto::drop_reason::DropReason;

use super::IntVersion;
use super::dialect::Form;
use super::template::offset_in;

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
    /// Bytes that are skipped: the checksum complement and reserved instructions.
    Skipped,
}

const ITEMS: u32 = Item::Skipped as u32;

/// The meaning of an instruction bitmap: the field of each bit, and which take 8 bytes.
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
    pub(super) const fn for_version(version: IntVersion) -> Instructions {
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
        let mut same = Instructions::for_version(IntVersion::V21);
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
    pub(super) const fn word_count(&self, bitmap: u16) -> u32 {
        bitmap.count_ones() + (bitmap & self.wide).count_ones()
    }
}

/// Where each field lies in one node's bytes: 5 bits per [`Item`] for the offset in words of 4 bytes, and
/// above them the two flags. A single number, because it is copied with each report and hop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout(u64);

/// Bits of an offset.
const AT_BITS: u32 = 5;
/// The field is absent.
const ABSENT: u64 = (1 << AT_BITS) - 1;
/// Timestamps have 64 bits.
const WIDE_TIMES: u64 = 1 << 63;
/// The queue's number and its value have 16 bits each, not 8 and 24.
const HALVED_QUEUE: u64 = 1 << 62;
const _: () = assert!(ITEMS * AT_BITS <= 62);

impl Layout {
    /// No field.
    pub(super) const NONE: Layout = Layout((1 << (ITEMS * AT_BITS)) - 1);

    /// Adds a field at an offset: whole words, fewer than 31 of them.
    pub(super) const fn with_item(self, item: Item, at: u8) -> Layout {
        assert!(at.is_multiple_of(4) && at as u64 / 4 < ABSENT);
        self.with_words(item, at as u64 / 4)
    }

    const fn with_words(self, item: Item, words: u64) -> Layout {
        let shift = item as u32 * AT_BITS;
        Layout(self.0 & !(ABSENT << shift) | words << shift)
    }

    pub(super) const fn without_item(self, item: Item) -> Layout {
        self.with_words(item, ABSENT)
    }

    /// The offset of a field in bytes.
    #[inline]
    fn byte_offset(self, item: Item) -> Option<usize> {
        let words = self.0 >> (item as u32 * AT_BITS) & ABSENT;
        (words != ABSENT).then_some(words as usize * 4)
    }

    /// Adjusted for a dialect.
    #[inline]
    pub(super) fn adjust_for_form(mut self, form: &Form) -> Layout {
        if form.halved_queue {
            self.0 |= HALVED_QUEUE;
        }
        if form.no_latency {
            self = self.without_item(Item::Latency);
        }
        self
    }

    /// The fields that a bitmap asks for, from an offset of whole words. Fields beyond 30 words are left out;
    /// no format has that many.
    pub(super) const fn from_bitmap(instructions: &Instructions, bitmap: u16, from: u8) -> Layout {
        let mut layout = Layout::NONE;
        if instructions.wide & TIMES != 0 {
            layout.0 |= WIDE_TIMES;
        }
        let (mut rest, mut at) = (bitmap, from);
        while rest != 0 {
            let bit = rest.leading_zeros() as usize;
            let mask = 0x8000 >> bit;
            rest &= !mask;
            let item = instructions.items[bit];
            if !matches!(item, Item::Skipped) && (at as u64) < ABSENT * 4 {
                layout = layout.with_item(item, at);
            }
            at = at.saturating_add(if instructions.wide & mask != 0 { 8 } else { 4 });
        }
        layout
    }
}

/// Precomputed layouts of all bitmaps of one kind of instructions. Only the upper 8 bits of a bitmap may name
/// fields.
pub(super) struct Layouts([Layout; 256]);

impl Layouts {
    /// Offset of the first field.
    pub(super) const fn from_instructions(instructions: &Instructions, from: u8) -> Layouts {
        let mut layouts = [Layout::NONE; 256];
        let mut upper = 0;
        while upper < 256 {
            layouts[upper] = Layout::from_bitmap(instructions, (upper as u16) << 8, from);
            upper += 1;
        }
        let mut bit = 8;
        while bit < 16 {
            assert!(matches!(instructions.items[bit], Item::Skipped));
            bit += 1;
        }
        Layouts(layouts)
    }

    /// Adds a field at an offset to all of them.
    pub(super) const fn with_item(mut self, item: Item, at: u8) -> Layouts {
        let mut upper = 0;
        while upper < 256 {
            self.0[upper] = self.0[upper].with_item(item, at);
            upper += 1;
        }
        self
    }

    #[inline]
    pub(super) fn get(&self, bitmap: u16) -> Layout {
        self.0[usize::from(bitmap >> 8)]
    }
}

/// A time on a node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Nanoseconds modulo 2^32: they wrap every 4.29 s.
    Short(u32),
    /// Nanoseconds from an unknown point.
    Long(u64),
}

impl Time {
    /// Nanoseconds from `earlier` to this moment. Modulo 2^32 if one has only 32 bits; `None` if both have 64
    /// and `earlier` is later.
    pub fn nanos_since(self, earlier: Time) -> Option<u64> {
        match (earlier, self) {
            (Time::Long(earlier), Time::Long(this)) => this.checked_sub(earlier),
            (earlier, this) => Some(this.low_32_bits().wrapping_sub(earlier.low_32_bits()).into()),
        }
    }

    pub const fn low_32_bits(self) -> u32 {
        match self {
            Time::Short(time) => time,
            Time::Long(time) => time as u32,
        }
    }

    /// The number as sent.
    pub const fn raw_number(self) -> u64 {
        match self {
            Time::Short(time) => time as u64,
            Time::Long(time) => time,
        }
    }
}

/// A queue or buffer: its number and fill level. Each may be unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Its number.
    pub id: Option<u32>,
    /// Occupancy, or the congestion status, in the node's unit.
    pub value: Option<u32>,
}

/// One node's metadata. No accessor panics; each returns `None` if the field was not sent or is all ones,
/// which means "not available".
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

/// Where a node's latency is in a report.
pub(super) enum LatencyWords {
    Sent(usize),
    /// From two times of 32 bits.
    Computed {
        egress: usize,
        ingress: usize,
    },
    /// It is unknown, and stays so as long as this word does not change.
    Unknown(Option<usize>),
}

/// A 16-bit field, unless it is all ones.
const fn known_u16(value: u32) -> Option<u32> {
    if value == 0xffff { None } else { Some(value) }
}

impl<'a> Metadata<'a> {
    pub(super) const NONE: Metadata<'static> = Metadata { bytes: &[], layout: Layout::NONE };

    pub(super) const fn new(bytes: &'a [u8], layout: Layout) -> Metadata<'a> {
        Metadata { bytes, layout }
    }

    /// Bytes of this node.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The offset of a field in the payload of its report.
    pub(super) fn item_offset(&self, payload: &[u8], item: Item) -> Option<usize> {
        let at = self.layout.byte_offset(item)?;
        self.bytes.get(at..at + 4)?;
        Some(offset_in(payload, self.bytes)? + at)
    }

    /// Where [`Metadata::node_latency`] is; `None` if that does not hold for other reports.
    pub(super) fn latency_words(&self, payload: &[u8]) -> Option<LatencyWords> {
        let item = |item| self.item_offset(payload, item);
        let sent = item(Item::Latency);
        match (sent, item(Item::EgressTime), item(Item::IngressTime)) {
            (Some(at), ..) if self.item_word(Item::Latency).is_some() => Some(LatencyWords::Sent(at)),
            (None, Some(egress), Some(ingress)) => {
                let is_short = self.layout.0 & WIDE_TIMES == 0 && self.node_latency().is_some();
                is_short.then_some(LatencyWords::Computed { egress, ingress })
            }
            (Some(_), Some(_), Some(_)) => None,
            (sent, ..) => Some(LatencyWords::Unknown(sent)),
        }
    }

    /// How many of the lowest bits of a queue's word are its value.
    pub(super) fn fill_bits(&self) -> u8 {
        if self.layout.0 & HALVED_QUEUE != 0 { 16 } else { 24 }
    }

    #[inline]
    fn has_item(&self, item: Item) -> bool {
        self.layout.byte_offset(item).is_some()
    }

    #[inline]
    fn item_word_at(&self, item: Item, more: usize) -> Option<u32> {
        let bytes = self.bytes.get(self.layout.byte_offset(item)? + more..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    }

    /// A 32-bit field.
    #[inline]
    fn item_word(&self, item: Item) -> Option<u32> {
        self.item_word_at(item, 0).filter(|word| *word != u32::MAX)
    }

    #[inline]
    fn item_fill(&self, item: Item) -> Fill {
        let Some(word) = self.item_word_at(item, 0) else { return Fill::default() };
        if self.layout.0 & HALVED_QUEUE != 0 {
            return Fill { id: known_u16(word >> 16), value: known_u16(word & 0xffff) };
        }
        let (id, value) = (word >> 24, word & 0x00ff_ffff);
        Fill { id: (id != 0xff).then_some(id), value: (value != 0x00ff_ffff).then_some(value) }
    }

    #[inline]
    fn item_time(&self, item: Item) -> Option<Time> {
        if self.layout.0 & WIDE_TIMES == 0 {
            return self.item_word(item).map(Time::Short);
        }
        let time = u64::from(self.item_word_at(item, 0)?) << 32 | u64::from(self.item_word_at(item, 4)?);
        (time != u64::MAX).then_some(Time::Long(time))
    }

    /// Whether there is anything but the arrival time, so that this is a hop.
    pub fn is_hop(&self) -> bool {
        use Item::*;
        [Ports, Latency, Queue, EgressTime, Congestion, Level2Ports, Utilization, Buffer]
            .into_iter()
            .any(|item| self.has_item(item))
    }

    #[inline]
    pub fn switch_number(&self) -> Option<u32> {
        self.item_word(Item::Switch)
    }

    /// Ingress port: the level-1 (physical) one, or the level-2 (logical) one if only that was sent.
    #[inline]
    pub fn ingress_port(&self) -> Option<u32> {
        match self.item_word_at(Item::Ports, 0) {
            Some(ports) => known_u16(ports >> 16),
            None => self.item_word(Item::Level2Ports),
        }
    }

    /// Egress port, as [`Metadata::ingress_port`].
    #[inline]
    pub fn egress_port(&self) -> Option<u32> {
        match self.item_word_at(Item::Ports, 0) {
            Some(ports) => known_u16(ports & 0xffff),
            None => self.item_word_at(Item::Level2Ports, 4).filter(|port| *port != u32::MAX),
        }
    }

    /// Nanoseconds in the node: as sent, else computed from both timestamps.
    #[inline]
    pub fn node_latency(&self) -> Option<u64> {
        match self.item_word(Item::Latency) {
            Some(latency) => Some(latency.into()),
            None => self.egress_time()?.nanos_since(self.ingress_time()?),
        }
    }

    /// The packet's queue and its occupancy.
    #[inline]
    pub fn queue_fill(&self) -> Fill {
        self.item_fill(Item::Queue)
    }

    /// The queue and its congestion status (INT v0.5).
    #[inline]
    pub fn congestion(&self) -> Fill {
        self.item_fill(Item::Congestion)
    }

    /// The buffer and its occupancy (version 2: 8 and 24 bits).
    #[inline]
    pub fn buffer_fill(&self) -> Fill {
        self.item_fill(Item::Buffer)
    }

    /// Arrival time.
    #[inline]
    pub fn ingress_time(&self) -> Option<Time> {
        self.item_time(Item::IngressTime)
    }

    /// Departure time.
    #[inline]
    pub fn egress_time(&self) -> Option<Time> {
        self.item_time(Item::EgressTime)
    }

    /// Utilisation of the egress port, in the node's unit.
    #[inline]
    pub fn utilization(&self) -> Option<u32> {
        self.item_word(Item::Utilization)
    }

    /// Why the packet was dropped; `None` if it was not.
    #[inline]
    pub fn drop_reason(&self) -> Option<DropReason> {
        Some(DropReason::from_int((self.item_word_at(Item::Drop, 0)? >> 16) as u8))
    }

    /// The queue in which the packet was dropped.
    #[inline]
    pub fn drop_queue(&self) -> Option<u8> {
        let queue = (self.item_word_at(Item::Drop, 0)? >> 24) as u8;
        (queue != 0xff).then_some(queue)
    }
}
