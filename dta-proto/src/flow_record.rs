//! What an exporter (NetFlow, IPFIX, sFlow) says of a flow: one entry of the list `flow-records`.
//!
//! [`COLUMNS`] is the only definition of a record's contents: the bytes of an entry, the columns of Parquet, JSON, SQL and
//! Python, and the words of `dta-collector flows` with their help follow from it.
//!
//! An entry has [`ENTRY_LEN`] bytes: the columns in their order, big-endian, without gaps. An IPv4 address is stored as the
//! IPv6 address it is mapped to (RFC 4291 2.5.5.2). A column that the exporter did not fill is 0, an address `::`.
//! Counts are as reported: readers multiply them by `sampling_rate`.

use core::net::{IpAddr, Ipv6Addr};

use crate::crc::crc32c;
use crate::key::Flow;

/// The name of the store: append, an entry of [`ENTRY_LEN`] bytes for each record.
pub const STORE: &str = "flow-records";

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// 16 bytes: an IPv6 address, or an IPv4 address mapped to one.
    Address,
    /// Nanoseconds since 1970, 64 bits.
    Time,
    /// A sum: packets or bytes, 64 bits.
    Count,
    /// A number that names something: 32, 16 or 8 bits.
    Number {
        /// Bytes: 4, 2 or 1.
        width: usize,
    },
}

impl ColumnType {
    /// Bytes in an entry.
    pub const fn width(self) -> usize {
        match self {
            ColumnType::Address => 16,
            ColumnType::Time | ColumnType::Count => 8,
            ColumnType::Number { width } => width,
        }
    }
}

/// A column of a flow record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name on command lines and in help: `dst-port`. Files and SQL have `_` in place of `-`.
    pub name: &'static str,
    /// What it holds.
    pub kind: ColumnType,
    /// Where it begins in an entry.
    pub offset: usize,
    /// What it means, for people.
    pub help: &'static str,
}

trait Field: Sized {
    const ZERO: Self;
    fn write_at(&self, entry: &mut [u8; ENTRY_LEN], offset: usize);
    fn read_at(entry: &[u8; ENTRY_LEN], offset: usize) -> Self;
}

macro_rules! number_fields {
    ($($number:ty),*) => { $(
        impl Field for $number {
            const ZERO: $number = 0;

            #[inline]
            fn write_at(&self, entry: &mut [u8; ENTRY_LEN], offset: usize) {
                entry[offset..offset + size_of::<$number>()].copy_from_slice(&self.to_be_bytes());
            }

            #[inline]
            fn read_at(entry: &[u8; ENTRY_LEN], offset: usize) -> $number {
                let mut bytes = [0; size_of::<$number>()];
                bytes.copy_from_slice(&entry[offset..offset + size_of::<$number>()]);
                <$number>::from_be_bytes(bytes)
            }
        }
    )* };
}

number_fields!(u8, u16, u32, u64, u128);

impl Field for Ipv6Addr {
    const ZERO: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

    #[inline]
    fn write_at(&self, entry: &mut [u8; ENTRY_LEN], offset: usize) {
        self.to_bits().write_at(entry, offset);
    }

    #[inline]
    fn read_at(entry: &[u8; ENTRY_LEN], offset: usize) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::read_at(entry, offset))
    }
}

macro_rules! flow_record {
    ($($(#[doc = $help:literal])+ $field:ident: $type:ty = $name:literal $kind:expr),+ $(,)?) => {
        /// A flow record: [`COLUMNS`] as fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct FlowRecord {
            $($(#[doc = $help])+ pub $field: $type,)+
        }

        const UNPLACED: &[Column] =
            &[$(Column { name: $name, kind: $kind, offset: 0, help: concat!($($help),+).trim_ascii() }),+];

        impl FlowRecord {
            /// A record without any reported value.
            pub const EMPTY: FlowRecord = FlowRecord { $($field: <$type as Field>::ZERO),+ };

            /// The record as an entry.
            pub fn to_entry(&self) -> [u8; ENTRY_LEN] {
                let mut entry = [0; ENTRY_LEN];
                let mut offset = 0;
                $(
                    self.$field.write_at(&mut entry, offset);
                    offset += size_of::<$type>();
                )+
                debug_assert_eq!(offset, ENTRY_LEN);
                entry
            }

            /// The record in an entry: any bytes are valid.
            pub fn from_entry(entry: &[u8; ENTRY_LEN]) -> FlowRecord {
                let mut offset = 0;
                $(
                    let $field = <$type>::read_at(entry, offset);
                    offset += size_of::<$type>();
                )+
                debug_assert_eq!(offset, ENTRY_LEN);
                FlowRecord { $($field),+ }
            }
        }
    };
}

const NUMBER_32: ColumnType = ColumnType::Number { width: 4 };
const NUMBER_16: ColumnType = ColumnType::Number { width: 2 };
const NUMBER_8: ColumnType = ColumnType::Number { width: 1 };

flow_record! {
    /// When the translator received it
    received: u64 = "received" ColumnType::Time,
    /// When the flow's first packet came, by the exporter's clock
    start: u64 = "start" ColumnType::Time,
    /// When the flow's last packet came, by the exporter's clock
    end: u64 = "end" ColumnType::Time,
    /// Bytes from the IP header on, as counted
    bytes: u64 = "bytes" ColumnType::Count,
    /// Packets, as counted
    packets: u64 = "packets" ColumnType::Count,
    /// Exporter: the datagram's sender, or the agent it names (sFlow)
    exporter: Ipv6Addr = "exporter" ColumnType::Address,
    /// Source address
    src: Ipv6Addr = "src" ColumnType::Address,
    /// Destination address
    dst: Ipv6Addr = "dst" ColumnType::Address,
    /// Next hop's address
    next_hop: Ipv6Addr = "next-hop" ColumnType::Address,
    /// Source address behind NAT
    nat_src: Ipv6Addr = "nat-src" ColumnType::Address,
    /// Destination address behind NAT
    nat_dst: Ipv6Addr = "nat-dst" ColumnType::Address,
    /// Observation domain, source id or sub-agent of the exporter
    domain: u32 = "domain" NUMBER_32,
    /// Interface by which the flow enters
    in_if: u32 = "in-if" NUMBER_32,
    /// Interface by which the flow leaves
    out_if: u32 = "out-if" NUMBER_32,
    /// Source AS
    src_as: u32 = "src-as" NUMBER_32,
    /// Destination AS
    dst_as: u32 = "dst-as" NUMBER_32,
    /// One packet in so many was counted; 1 = all
    sampling_rate: u32 = "sampling-rate" NUMBER_32,
    /// VXLAN network identifier, or another tunnel's key
    vni: u32 = "vni" NUMBER_32,
    /// Outermost MPLS label
    mpls_label: u32 = "mpls-label" NUMBER_32,
    /// VRF by which the flow enters
    vrf: u32 = "vrf" NUMBER_32,
    /// Source port
    src_port: u16 = "src-port" NUMBER_16,
    /// Destination port
    dst_port: u16 = "dst-port" NUMBER_16,
    /// Source port behind NAT
    nat_src_port: u16 = "nat-src-port" NUMBER_16,
    /// Destination port behind NAT
    nat_dst_port: u16 = "nat-dst-port" NUMBER_16,
    /// VLAN by which the flow enters
    in_vlan: u16 = "in-vlan" NUMBER_16,
    /// VLAN by which the flow leaves
    out_vlan: u16 = "out-vlan" NUMBER_16,
    /// ICMP type times 256, plus code
    icmp: u16 = "icmp" NUMBER_16,
    /// IP protocol
    protocol: u8 = "protocol" NUMBER_8,
    /// TCP flags of all its packets
    tcp_flags: u8 = "tcp-flags" NUMBER_8,
    /// Differentiated services code point
    dscp: u8 = "dscp" NUMBER_8,
    /// Where counted: 0 not said, 1 where it enters, 2 where it leaves
    direction: u8 = "direction" NUMBER_8,
    /// Status (RFC 7270 4.12): 64 forwarded, 128 dropped, 192 consumed
    forwarding: u8 = "forwarding" NUMBER_8,
    /// NAT event (RFC 8158 4.6.1); 0 for what is no event
    nat_event: u8 = "nat-event" NUMBER_8,
}

/// `direction` of a flow counted where it enters the exporter.
pub const DIRECTION_INGRESS: u8 = 1;
/// `direction` of a flow counted where it leaves the exporter.
pub const DIRECTION_EGRESS: u8 = 2;

/// An address as records hold it.
#[inline]
pub const fn to_mapped_address(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The number of an exporter where switches have numbers: its IPv4 address, or for IPv6 a checksum of the address in
/// 240.0.0.0/4, where no exporter is (RFC 1112 4).
#[inline]
pub fn switch_from_exporter(exporter: IpAddr) -> u32 {
    match exporter.to_canonical() {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => 0xf000_0000 | crc32c(&address.octets()) >> 4,
    }
}

impl FlowRecord {
    /// The flow as in the keys of other stores.
    #[inline]
    pub fn flow_key(&self) -> Flow {
        let [src, dst] = [self.src, self.dst].map(|address| IpAddr::V6(address).to_canonical());
        Flow { src, dst, sport: self.src_port, dport: self.dst_port, proto: self.protocol }
    }

    /// Packets, scaled by the sampling rate.
    #[inline]
    pub fn total_packets(&self) -> u64 {
        self.packets.saturating_mul(self.sampling_rate.max(1).into())
    }

    /// Bytes, scaled by the sampling rate.
    #[inline]
    pub fn total_bytes(&self) -> u64 {
        self.bytes.saturating_mul(self.sampling_rate.max(1).into())
    }
}

/// Bytes of an entry.
pub const ENTRY_LEN: usize = {
    let (mut at, mut len) = (0, 0);
    while at < UNPLACED.len() {
        len += UNPLACED[at].kind.width();
        at += 1;
    }
    len
};

const fn is_same_text(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    a.len() == b.len() && at == a.len()
}

/// The columns, in the order of an entry's bytes.
pub const COLUMNS: [Column; UNPLACED.len()] = {
    let mut columns = [UNPLACED[0]; UNPLACED.len()];
    let (mut at, mut offset) = (0, 0);
    while at < columns.len() {
        columns[at] = Column { offset, ..UNPLACED[at] };
        offset += columns[at].kind.width();
        at += 1;
    }
    columns
};

impl Column {
    /// The column with exactly this name, for constants.
    pub const fn from_name_const(name: &str) -> Option<Column> {
        let mut at = 0;
        while at < COLUMNS.len() {
            if is_same_text(COLUMNS[at].name.as_bytes(), name.as_bytes()) {
                return Some(COLUMNS[at]);
            }
            at += 1;
        }
        None
    }

    /// The column with this name, spelled with `-` or `_`.
    pub fn from_name(name: &str) -> Option<&'static Column> {
        static PLACED: [Column; UNPLACED.len()] = COLUMNS;
        let is_same = |(a, b): (u8, u8)| a == b || (a, b) == (b'-', b'_');
        PLACED.iter().find(|column| {
            column.name.len() == name.len() && column.name.bytes().zip(name.bytes()).all(is_same)
        })
    }

    /// The column's value in an entry as a number; an address has 128 bits.
    #[inline]
    pub fn read_value(&self, entry: &[u8; ENTRY_LEN]) -> u128 {
        match self.kind.width() {
            1 => u8::read_at(entry, self.offset).into(),
            2 => u16::read_at(entry, self.offset).into(),
            4 => u32::read_at(entry, self.offset).into(),
            8 => u64::read_at(entry, self.offset).into(),
            _ => u128::read_at(entry, self.offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_entry_has_192_bytes_and_every_column_its_own() {
        assert_eq!(ENTRY_LEN, 192);
        let ends = COLUMNS.iter().scan(0, |end, column| {
            assert_eq!(column.offset, *end, "{}", column.name);
            *end += column.kind.width();
            Some(*end)
        });
        assert_eq!(ends.last(), Some(ENTRY_LEN));
        for column in COLUMNS {
            assert_eq!(Column::from_name(column.name), Some(&column));
            assert_eq!(Column::from_name(&column.name.replace('-', "_")), Some(&column));
            assert!(!column.help.is_empty() && !column.help.ends_with('.'), "{}", column.help);
        }
        assert_eq!(Column::from_name("dst.port"), None);
    }

    #[test]
    fn bytes_are_as_documented() {
        let mut record = FlowRecord { received: 0x0102_0304_0506_0708, dst_port: 443, ..FlowRecord::EMPTY };
        record.src = "192.0.2.1".parse::<core::net::Ipv4Addr>().unwrap().to_ipv6_mapped();
        let entry = record.to_entry();
        assert_eq!(entry[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        let src = Column::from_name("src").unwrap();
        assert_eq!(entry[src.offset..][..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 1]);
        assert_eq!(Column::from_name("dst-port").unwrap().read_value(&entry), 443);
        assert_eq!(src.read_value(&entry), 0xffff_c000_0201);
    }

    #[test]
    fn flows_totals_and_exporters() {
        let mut record = FlowRecord { packets: 7, bytes: 1 << 60, src_port: 1, ..FlowRecord::EMPTY };
        assert_eq!((record.total_packets(), record.total_bytes()), (7, 1 << 60), "of no rate");
        record.sampling_rate = 100;
        assert_eq!((record.total_packets(), record.total_bytes()), (700, u64::MAX));
        [record.src, record.dst] =
            ["192.0.2.1", "198.51.100.7"].map(|text| to_mapped_address(text.parse().unwrap()));
        (record.dst_port, record.protocol) = (443, 6);
        assert_eq!(record.flow_key().to_string(), "192.0.2.1:1->198.51.100.7:443/tcp");
        assert_eq!(switch_from_exporter(IpAddr::V6(record.src)), 0xc000_0201);
        let [a, b] = ["2001:db8::1", "2001:db8::2"].map(|text| switch_from_exporter(text.parse().unwrap()));
        assert!(a != b && a >> 28 == 15 && b >> 28 == 15);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_and_its_entry_again(entry: [u8; 32], more: [u8; 32]) {
            let mut bytes = [0; ENTRY_LEN];
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = entry[at % 32] ^ more[at / 6].rotate_left(at as u32);
            }
            prop_assert_eq!(FlowRecord::from_entry(&bytes).to_entry(), bytes);
        }
    }
}
