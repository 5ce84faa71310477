//! Capture files: classic pcap (both byte orders, micro- and nanoseconds) and pcapng, as they are or packed with gzip.
//!
//! Sources: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng, and the registry of link types at tcpdump.org.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};

/// Bytes read at once; a larger record grows the buffer.
const BUFFER: usize = 1 << 20;
/// No capture tool writes such a large record, so a length beyond it is damage.
const LARGEST_RECORD: usize = 64 << 20;
/// What a gzip file begins with (RFC 1952 section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What a packet's first byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet, destination MAC first (link type 1).
    Ethernet,
    /// An IPv4 or IPv6 header (link types 101, 228, 229 and the old 12 and 14).
    RawIp,
    /// Linux "any" device, 16-byte header, protocol in bytes 14-15 (link type 113).
    LinuxCooked,
    /// Linux "any" device, 20-byte header, protocol in bytes 0-1 (link type 276).
    LinuxCooked2,
    /// BSD loopback, a 4-byte address family (link types 0 and 108).
    Loopback,
    /// Anything else, by its number.
    Other(i32),
}

impl From<Linktype> for LinkType {
    fn from(value: Linktype) -> Self {
        match value.0 {
            1 => Self::Ethernet,
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            113 => Self::LinuxCooked,
            276 => Self::LinuxCooked2,
            0 | 108 => Self::Loopback,
            other => Self::Other(other),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'a> {
    /// Capture time, nanoseconds since 1970; 0 where the format has none (pcapng simple packets).
    pub time_ns: u64,
    /// Bytes on the wire; more than `data` holds if the capture was made with a snap length.
    pub original_len: u32,
    /// What `data` begins with.
    pub link: LinkType,
    /// The captured bytes.
    pub data: &'a [u8],
}

/// Where a capture becomes unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureCut {
    /// Byte offset in the file at which the unreadable record begins.
    pub offset: u64,
    pub after_packets: u64,
    /// `the file ends inside a record` or `the record there is damaged`, and what the record says.
    pub reason: String,
}

impl std::fmt::Display for CaptureCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cut at byte {} after {} packets: {}", self.offset, self.after_packets, self.reason)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub packets: u64,
    /// Set if the file ends early or is damaged; all packets before the cut were passed on.
    pub cut: Option<CaptureCut>,
}

/// Why a capture cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    /// It does not begin like a capture.
    #[error(
        "{name} is not a capture: it begins with neither a pcap nor a pcapng header (of packed captures, those of gzip are read: unpack others first)"
    )]
    NotACapture { name: String },
    /// The file header itself is truncated.
    #[error("{name} ends inside its file header: it holds no packet")]
    Empty { name: String },
    #[error("cannot read more of {name} after {packets} packets")]
    Read { name: String, packets: u64 },
}

/// Reads the capture at `path` and calls `each` with each packet, in file order.
///
/// A file that ends inside a record, or holds a damaged one, yields every packet before that place; [`Summary::cut`]
/// says where.
pub fn read(path: &Path, each: impl FnMut(CapturedPacket<'_>)) -> Result<Summary, CaptureError> {
    // A pipe may carry a capture that is being unpacked; a device has no end.
    let takes = |about: &std::fs::Metadata| about.is_file() || about.file_type().is_fifo();
    let file = dta_files::file::open(path, takes)
        .map_err(|source| CaptureError::Open { path: path.to_owned(), source })?;
    read_from(file, &path.display().to_string(), each)
}

/// Like [`read`], from any reader; `name` is used in messages.
pub fn read_from(
    source: impl Read + Send,
    name: &str,
    mut each: impl FnMut(CapturedPacket<'_>),
) -> Result<Summary, CaptureError> {
    let source = unpack_gzip(source).map_err(|_| CaptureError::Read { name: name.into(), packets: 0 })?;
    let mut reader = match create_reader(BUFFER, source) {
        Ok(reader) => reader,
        Err(PcapError::HeaderNotRecognized | PcapError::NomError(..) | PcapError::OwnedNomError(..)) => {
            return Err(CaptureError::NotACapture { name: name.into() });
        }
        Err(PcapError::ReadError) => return Err(CaptureError::Read { name: name.into(), packets: 0 }),
        Err(_) => return Err(CaptureError::Empty { name: name.into() }),
    };
    let mut summary = Summary::default();
    let mut interfaces = Vec::<CaptureInterface>::new();
    let (mut capacity, mut format) = (BUFFER, None);
    loop {
        let offset = reader.consumed() as u64;
        let (after_packets, claimed) = (summary.packets, claimed_length(reader.data(), format));
        let cut = |reason: &str| {
            let says =
                claimed.map(|length| format!(", and says that it has {length} bytes")).unwrap_or_default();
            Some(CaptureCut { offset, after_packets, reason: format!("{reason}{says}") })
        };
        match reader.next() {
            Ok((length, block)) => {
                format = format_of(&block).or(format);
                if let Some(packet) = packet_of(&block, &mut interfaces) {
                    summary.packets += 1;
                    each(packet);
                }
                reader.consume(length);
            }
            Err(PcapError::Eof) => return Ok(summary),
            Err(PcapError::Incomplete(_)) => {
                if reader.refill().is_err() {
                    return Err(CaptureError::Read { name: name.into(), packets: summary.packets });
                }
            }
            Err(PcapError::BufferTooSmall) => {
                if reader.reader_exhausted() {
                    summary.cut = cut("the file ends inside a record");
                    return Ok(summary);
                }
                if capacity >= LARGEST_RECORD {
                    summary.cut = cut("the record there is damaged");
                    return Ok(summary);
                }
                capacity *= 2;
                reader.grow(capacity);
                if reader.refill().is_err() {
                    return Err(CaptureError::Read { name: name.into(), packets: summary.packets });
                }
            }
            Err(PcapError::UnexpectedEof) => {
                // The parsers ask for more bytes even after the last record.
                if !reader.data().is_empty() {
                    summary.cut = cut("the file ends inside a record");
                }
                return Ok(summary);
            }
            Err(PcapError::ReadError) => {
                return Err(CaptureError::Read { name: name.into(), packets: summary.packets });
            }
            Err(_) => {
                summary.cut = cut("the record there is damaged");
                return Ok(summary);
            }
        }
    }
}

/// Unpacks gzip; returns anything else as it is.
fn unpack_gzip<'a>(source: impl Read + Send + 'a) -> io::Result<Box<dyn Read + Send + 'a>> {
    // The parser takes a header from its first read, so what was looked at must come in one piece with the rest.
    let mut source = BufReader::with_capacity(BUFFER, source);
    let is_packed = source.fill_buf()?.starts_with(&GZIP);
    Ok(if is_packed { Box::new(MultiGzDecoder::new(source)) } else { Box::new(source) })
}

/// How a record's header is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CaptureFormat {
    Classic { big_endian: bool },
    Ng { big_endian: bool },
}

/// The layout of what follows a file or section header.
fn format_of(block: &PcapBlockOwned<'_>) -> Option<CaptureFormat> {
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            Some(CaptureFormat::Classic { big_endian: header.is_bigendian() })
        }
        PcapBlockOwned::NG(Block::SectionHeader(header)) => {
            Some(CaptureFormat::Ng { big_endian: header.big_endian() })
        }
        _ => None,
    }
}

/// The claimed length of the record at the beginning of `data`: its captured bytes, or the whole block of a pcapng
/// file.
fn claimed_length(data: &[u8], format: Option<CaptureFormat>) -> Option<u32> {
    let (at, big_endian) = match format? {
        CaptureFormat::Classic { big_endian } => (8, big_endian),
        CaptureFormat::Ng { big_endian } => (4, big_endian),
    };
    let bytes = data.get(at..at + 4)?.try_into().ok()?;
    Some(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
}

/// An interface of a pcapng section, or the one of a classic file.
struct CaptureInterface {
    link: LinkType,
    /// Length of one tick: seconds / `per_second`.
    per_second: u64,
    offset_seconds: i64,
    /// Simple packets have no captured length.
    snaplen: u32,
}

impl CaptureInterface {
    fn nanoseconds(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.per_second.max(1));
        let ns = i128::try_from(ns).unwrap_or(i128::MAX) + i128::from(self.offset_seconds) * 1_000_000_000;
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

fn packet_of<'a>(
    block: &'a PcapBlockOwned<'_>,
    interfaces: &mut Vec<CaptureInterface>,
) -> Option<CapturedPacket<'a>> {
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            let per_second = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
            interfaces.push(CaptureInterface {
                link: header.network.into(),
                per_second,
                offset_seconds: 0,
                snaplen: header.snaplen,
            });
            None
        }
        PcapBlockOwned::Legacy(record) => {
            let interface = interfaces.first()?;
            let fraction = interface.nanoseconds(u64::from(record.ts_usec));
            let data = record.data.get(..record.caplen as usize).unwrap_or(record.data);
            Some(CapturedPacket {
                time_ns: u64::from(record.ts_sec) * 1_000_000_000 + fraction,
                original_len: record.origlen,
                link: interface.link,
                data,
            })
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => {
            // Interface numbers restart in each section.
            interfaces.clear();
            None
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(description)) => {
            interfaces.push(CaptureInterface {
                link: description.linktype.into(),
                per_second: description.ts_resolution().unwrap_or(1_000_000),
                offset_seconds: description.ts_offset(),
                snaplen: description.snaplen,
            });
            None
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let interface = interfaces.get(packet.if_id as usize)?;
            let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            Some(CapturedPacket {
                time_ns: interface.nanoseconds(ticks),
                original_len: packet.origlen,
                link: interface.link,
                data: packet.data.get(..packet.caplen as usize)?,
            })
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
            let interface = interfaces.first()?;
            let limit = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
            let captured = packet.origlen.min(limit) as usize;
            Some(CapturedPacket {
                time_ns: 0,
                original_len: packet.origlen,
                link: interface.link,
                data: packet.data.get(..captured).unwrap_or(packet.data),
            })
        }
        PcapBlockOwned::NG(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A classic capture of `packets`, in either byte order and precision.
    fn classic(packets: &[(u32, u32, &[u8])], big_endian: bool, nanoseconds: bool) -> Vec<u8> {
        let word = |n: u32| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let half = |n: u16| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let mut file = Vec::new();
        file.extend(word(if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }));
        file.extend(half(2));
        file.extend(half(4));
        for n in [0, 0, 65_535, 1] {
            file.extend(word(n));
        }
        for (seconds, fraction, data) in packets {
            for n in [*seconds, *fraction, data.len() as u32, data.len() as u32 + 7] {
                file.extend(word(n));
            }
            file.extend(*data);
        }
        file
    }

    /// A pcapng section with one interface and `packets` as enhanced packet blocks; ticks are the
    /// default microseconds.
    fn section(packets: &[(u64, &[u8])], link: u16, big_endian: bool) -> Vec<u8> {
        let word = |n: u32| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let half = |n: u16| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let block = |kind: u32, body: &[u8]| {
            let length = 12 + body.len() as u32;
            [&word(kind)[..], &word(length), body, &word(length)].concat()
        };
        let mut file =
            block(0x0a0d_0d0a, &[&word(0x1a2b_3c4d)[..], &half(1), &half(0), &word(!0), &word(!0)].concat());
        file.extend(block(1, &[&half(link)[..], &half(0), &word(0)].concat()));
        for (ticks, data) in packets {
            let mut body = [
                word(0),
                word((ticks >> 32) as u32),
                word(*ticks as u32),
                word(data.len() as u32),
                word(data.len() as u32),
            ]
            .concat();
            body.extend(*data);
            body.resize(body.len().next_multiple_of(4), 0);
            file.extend(block(6, &body));
        }
        file
    }

    type Collected = (Vec<(u64, u32, LinkType, Vec<u8>)>, Summary);

    fn collect(file: &[u8]) -> Result<Collected, CaptureError> {
        let mut packets = Vec::new();
        let summary =
            read_from(file, "test", |p| packets.push((p.time_ns, p.original_len, p.link, p.data.to_vec())))?;
        Ok((packets, summary))
    }

    #[test]
    fn classic_files_of_both_byte_orders_and_precisions() {
        for big_endian in [false, true] {
            for nanoseconds in [false, true] {
                let file = classic(&[(5, 7, b"abc"), (6, 8, b"")], big_endian, nanoseconds);
                let (packets, summary) = collect(&file).unwrap();
                let tick = if nanoseconds { 1 } else { 1000 };
                assert_eq!(packets[0], (5_000_000_000 + 7 * tick, 10, LinkType::Ethernet, b"abc".to_vec()));
                assert_eq!(packets[1], (6_000_000_000 + 8 * tick, 7, LinkType::Ethernet, vec![]));
                assert_eq!(summary, Summary { packets: 2, cut: None });
            }
        }
    }

    #[test]
    fn pcapng_of_both_byte_orders_and_of_two_sections() {
        let mut file = section(&[(1_500_000, b"abcde")], 1, false);
        file.extend(section(&[(2_500_000, b"xy"), (3, b"z")], 101, true));
        let (packets, summary) = collect(&file).unwrap();
        assert_eq!(packets[0], (1_500_000_000, 5, LinkType::Ethernet, b"abcde".to_vec()));
        assert_eq!(packets[1], (2_500_000_000, 2, LinkType::RawIp, b"xy".to_vec()));
        assert_eq!(packets[2].3, b"z");
        assert_eq!(summary, Summary { packets: 3, cut: None });
    }

    #[test]
    fn a_capture_packed_with_gzip_is_read_as_it_was() {
        let plain = classic(&[(5, 7, b"abc"), (6, 8, b"defg")], false, false);
        let pack = |bytes: &[u8]| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            std::io::Write::write_all(&mut packer, bytes).unwrap();
            packer.finish().unwrap()
        };
        let packed = pack(&plain);
        assert_eq!(collect(&packed).unwrap(), collect(&plain).unwrap());
        // In two members, as of `cat a.gz b.gz`.
        assert_eq!(
            collect(&[pack(&plain[..30]), pack(&plain[30..])].concat()).unwrap(),
            collect(&plain).unwrap()
        );
        let cut = collect(&packed[..packed.len() - 12]).unwrap_err();
        assert!(cut.to_string().starts_with("cannot read more of test"), "{cut}");
        assert!(matches!(
            collect(&pack(b"#!/bin/sh\necho no capture\n")),
            Err(CaptureError::NotACapture { .. })
        ));
    }

    #[test]
    fn a_cut_file_gives_all_packets_before_the_cut_and_names_the_place() {
        let ng: Vec<u8> = section(&[(1, b"abcd"), (2, b"efgh"), (3, b"ijkl")], 1, false);
        let old = classic(&[(1, 1, b"abcd"), (2, 2, b"efgh"), (3, 3, b"ijkl")], false, false);
        // Lengths of header and records: 24 + 20 each; 28 + 20 + 36 each.
        for (file, header, record) in [(old, 24, 20), (ng, 48, 36)] {
            for length in header..file.len() {
                let (packets, summary) = collect(&file[..length]).unwrap();
                let whole = (length - header) / record;
                assert_eq!(packets.len(), whole, "cut to {length} bytes");
                match summary.cut {
                    None => assert_eq!((length - header) % record, 0, "cut to {length} bytes"),
                    Some(cut) => {
                        assert_eq!(cut.offset as usize, header + whole * record);
                        assert_eq!(cut.after_packets as usize, whole);
                        assert!(cut.to_string().contains("ends inside a record"));
                    }
                }
            }
        }
    }

    #[test]
    fn a_record_larger_than_the_buffer_is_read() {
        let large = vec![7u8; 3 * BUFFER];
        let (packets, summary) = collect(&classic(&[(0, 0, &large), (1, 0, b"x")], false, false)).unwrap();
        assert_eq!(packets[0].3.len(), large.len());
        assert_eq!(summary, Summary { packets: 2, cut: None });
    }

    #[test]
    fn an_absurd_length_is_damage_and_loses_nothing_before_it() {
        let mut file = classic(&[(0, 0, b"good")], false, false);
        file.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0]);
        file.extend(vec![0; 100]);
        let (packets, summary) = collect(&file).unwrap();
        assert_eq!(packets.len(), 1);
        let cut = summary.cut.unwrap();
        assert_eq!((cut.after_packets, cut.offset), (1, 24 + 16 + 4));
        assert!(cut.reason.contains("2147483647 bytes"), "{cut}");
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        assert!(matches!(
            collect(b"#!/bin/sh\necho this is no capture\n"),
            Err(CaptureError::NotACapture { .. })
        ));
        assert!(matches!(collect(b""), Err(CaptureError::Empty { .. })));
        assert!(matches!(collect(&classic(&[], false, false)[..20]), Err(CaptureError::Empty { .. })));
        let missing = read(Path::new("/nonexistent.pcap"), |_| ()).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent.pcap"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut tail in proptest::collection::vec(any::<u8>(), 0..400), which in 0..3) {
            let mut file = match which {
                0 => vec![],
                1 => classic(&[(1, 1, b"abcd")], false, false),
                _ => section(&[(1, b"abcd")], 1, false),
            };
            file.append(&mut tail);
            let _ = collect(&file);
        }
    }
}
