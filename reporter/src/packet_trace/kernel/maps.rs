//! The maps shared by the programs and this process; the layouts are those of `reporter/ebpf/record.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

use aya::Ebpf;
use aya::maps::{Array, PerCpuArray, PerCpuHashMap, PerCpuValues};
use dta_proto::key::Flow;
use dta_proto::wire::roce;

use super::error_chain;
use super::namespace::Link;
use crate::packet_trace::counts::{Books, FlowAt, FlowCount};
use crate::packet_trace::digest::Sampling;
use crate::packet_trace::point::InterfaceSide;
use crate::packet_trace::record::{AttachmentKind, read_flow};

/// Size of the kernel's table of kinds of points.
const KINDS: usize = 16;
/// Size of the interface table, and how many places are probed.
const SLOTS: usize = 1024;
const PROBES: usize = 8;
const SLOT: usize = 16;
/// Distance between two interfaces' places: one for each kind that belongs to an interface, and two more.
const STRIDE: usize = 8;
const NO_POINT: u16 = u16::MAX;
const SETTINGS: usize = 64;
const UDP: u8 = 17;
const FLOW_AT: usize = 48;
const FLOW_COUNT: usize = 24;
const BOOKS: usize = 72;

pub(super) struct KernelSettings {
    pub(super) sampling: Sampling,
    pub(super) table: u32,
    pub(super) follow: bool,
    /// Whether the filter matches every packet.
    pub(super) all: bool,
    pub(super) count_flows: bool,
    pub(super) points: [u16; KINDS],
    translator: Option<SocketAddrV4>,
    wake_at: u32,
}

impl KernelSettings {
    pub(super) fn new(wake_at: u32, translator: Option<SocketAddrV4>) -> Self {
        Self {
            sampling: Sampling::ALL,
            table: 0,
            follow: true,
            all: false,
            count_flows: true,
            points: [NO_POINT; KINDS],
            translator,
            wake_at,
        }
    }

    /// Marks that a kind no longer has a point that sees all interfaces' packets.
    pub(super) fn free_kind(&mut self, kind: u16) {
        self.points[usize::from(kind)] = NO_POINT;
    }

    /// Twin of `is_ours` in `reporter/ebpf/trace.bpf.c`, for records of programs that do not check themselves.
    pub(super) fn is_own_traffic(&self, of: &Flow) -> bool {
        let Some(translator) = self.translator else { return false };
        let [from, to] = [of.src, of.dst].map(|address| address == IpAddr::V4(*translator.ip()));
        let (port, rdma) = (translator.port(), of.dport == roce::PORT);
        of.proto == UDP && ((to && (of.dport == port || rdma)) || (from && (of.sport == port || rdma)))
    }

    pub(super) fn write_to_map(&self, ebpf: &mut Ebpf) -> Result<(), String> {
        // Where packets enter and leave, and where they are lost.
        let counted =
            [AttachmentKind::Ingress, AttachmentKind::Egress, AttachmentKind::Xdp, AttachmentKind::Kfree]
                .iter()
                .fold(0, |bits, kind| bits | 1u32 << *kind as u16);
        let mut bytes = Vec::with_capacity(SETTINGS);
        bytes.extend(self.sampling.threshold.to_ne_bytes());
        let flags = u32::from(self.follow) | u32::from(self.all) << 1;
        for number in [self.table, flags, if self.count_flows { counted } else { 0 }, self.wake_at] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(self.points.iter().flat_map(|point| point.to_ne_bytes()));
        let translator = self.translator.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        bytes.extend(translator.ip().to_bits().to_ne_bytes());
        bytes.extend(translator.port().to_ne_bytes());
        bytes.extend([0; 2]);
        let bytes: [u8; SETTINGS] = bytes.try_into().map_err(|_| "the settings have the wrong size")?;
        let map = ebpf.map_mut("settings").ok_or("the object has no map `settings`")?;
        let mut map: Array<_, [u8; SETTINGS]> = map.try_into().map_err(|error| error_chain(&error))?;
        map.set(0, bytes, 0).map_err(|error| error_chain(&error))
    }
}

#[derive(Clone, PartialEq, Eq)]
struct InterfaceSlot {
    interface: u32,
    namespace: u32,
    kind: AttachmentKind,
    point: u16,
    ethernet: bool,
}

impl InterfaceSlot {
    fn start_index(&self) -> usize {
        self.interface as usize * STRIDE + self.kind as usize
    }
}

/// The table by which a program finds the point of an interface.
#[derive(Default)]
pub(super) struct Slots {
    wanted: Vec<InterfaceSlot>,
    written: Vec<[u8; SLOT]>,
}

impl Slots {
    pub(super) fn add_slot(&mut self, namespace: u32, link: &Link, side: InterfaceSide, point: u16) {
        let kind = match side {
            InterfaceSide::Ingress => AttachmentKind::Ingress,
            InterfaceSide::Egress => AttachmentKind::Egress,
            InterfaceSide::Xdp => AttachmentKind::Xdp,
            InterfaceSide::Queue => AttachmentKind::DevQueue,
            InterfaceSide::Driver => AttachmentKind::DevStartXmit,
            InterfaceSide::Receive => AttachmentKind::NetifReceive,
        };
        self.remove_point(point);
        self.wanted.push(InterfaceSlot {
            interface: link.index,
            namespace,
            kind,
            point,
            ethernet: link.ethernet,
        });
    }

    pub(super) fn remove_point(&mut self, point: u16) {
        self.wanted.retain(|slot| slot.point != point);
    }

    /// The table's bytes; an error if too many interfaces collide.
    fn build_table(&self) -> Result<Vec<[u8; SLOT]>, String> {
        let mut table = vec![[0; SLOT]; SLOTS];
        for slot in &self.wanted {
            let alike = |other: &&InterfaceSlot| other.interface == slot.interface && other.kind == slot.kind;
            let shared = self.wanted.iter().filter(alike).count() > 1;
            let mut places = (0..PROBES).map(|step| (slot.start_index() + step) % SLOTS);
            let place = places.find(|place| table[*place][13] == 0);
            let place = place.ok_or("too many interfaces with the same index are traced")?;
            let bytes = &mut table[place];
            bytes[..4].copy_from_slice(&slot.interface.to_ne_bytes());
            bytes[4..8].copy_from_slice(&slot.namespace.to_ne_bytes());
            bytes[8..10].copy_from_slice(&(slot.kind as u16).to_ne_bytes());
            bytes[10..12].copy_from_slice(&slot.point.to_ne_bytes());
            bytes[12] = if slot.ethernet { 14 } else { 0 };
            bytes[13] = 1;
            bytes[14] = u8::from(shared);
        }
        Ok(table)
    }

    pub(super) fn write_to_map(&mut self, ebpf: &mut Ebpf) -> Result<(), String> {
        let table = self.build_table()?;
        self.written.resize(SLOTS, [0; SLOT]);
        let map = ebpf.map_mut("slots").ok_or("the object has no map `slots`")?;
        let mut map: Array<_, [u8; SLOT]> = map.try_into().map_err(|error| error_chain(&error))?;
        for (index, (new, old)) in table.iter().zip(&mut self.written).enumerate() {
            if new != old {
                map.set(index as u32, new, 0).map_err(|error| error_chain(&error))?;
                *old = *new;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointBooks {
    pub point: u16,
    pub total: Books,
    /// Counters per processor; `missed` is known only in total.
    pub cpus: Vec<Books>,
}

pub(super) fn read_books(ebpf: &Ebpf, point: u16, missed: u64) -> Result<PointBooks, String> {
    let map = ebpf.map("books").ok_or("the object has no map `books`")?;
    let map: PerCpuArray<_, [u8; BOOKS]> = map.try_into().map_err(|error| error_chain(&error))?;
    let values = map.get(&u32::from(point), 0).map_err(|error| error_chain(&error))?;
    let cpus: Vec<Books> = values
        .iter()
        .map(|bytes| {
            let [seen, reported, filtered, sampled_out, ring_full, not_ip, unreadable, flows_full, own] =
                read_numbers(bytes);
            Books {
                seen,
                reported,
                filtered,
                sampled_out,
                own,
                ring_full,
                not_ip,
                unreadable,
                missed: 0,
                flows_full,
            }
        })
        .collect();
    let mut total = Books { missed, ..Books::default() };
    cpus.iter().for_each(|cpu| total.add(cpu));
    Ok(PointBooks { point, total, cpus })
}

/// Resets a point's counters.
pub(super) fn clear_books(ebpf: &mut Ebpf, point: u16) -> Result<(), String> {
    let map = ebpf.map_mut("books").ok_or("the object has no map `books`")?;
    let mut map: PerCpuArray<_, [u8; BOOKS]> = map.try_into().map_err(|error| error_chain(&error))?;
    let cpus = map.get(&u32::from(point), 0).map_err(|error| error_chain(&error))?.len();
    let none = PerCpuValues::try_from(vec![[0; BOOKS]; cpus]).map_err(|error| error_chain(&error))?;
    map.set(u32::from(point), none, 0).map_err(|error| error_chain(&error))
}

fn read_numbers<const BYTES: usize, const N: usize>(bytes: &[u8; BYTES]) -> [u64; N] {
    std::array::from_fn(|i| bytes[8 * i..].first_chunk().map_or(0, |number| u64::from_ne_bytes(*number)))
}

pub(super) fn read_flows(ebpf: &Ebpf) -> Result<Vec<(FlowAt, FlowCount)>, String> {
    let map = ebpf.map("flows").ok_or("the object has no map `flows`")?;
    let map: PerCpuHashMap<_, [u8; FLOW_AT], [u8; FLOW_COUNT]> =
        map.try_into().map_err(|error| error_chain(&error))?;
    map.iter()
        .map(|entry| {
            let (at, counts) = entry.map_err(|error| error_chain(&error))?;
            let mut sum = FlowCount::default();
            for cpu in counts.iter() {
                let [packets, bytes, drops] = read_numbers(cpu);
                sum.packets += packets;
                sum.bytes += bytes;
                sum.drops += drops;
            }
            let u32_at = |place: usize| u32::from_ne_bytes(std::array::from_fn(|i| at[place + i]));
            let point = u16::from_ne_bytes([at[38], at[39]]);
            Ok((
                FlowAt { flow: read_flow(&at[..37]), namespace: u32_at(40), interface: u32_at(44), point },
                sum,
            ))
        })
        .collect()
}

pub(super) fn forget_flow(ebpf: &mut Ebpf, at: &FlowAt) -> Result<(), String> {
    let map = ebpf.map_mut("flows").ok_or("the object has no map `flows`")?;
    let mut map: PerCpuHashMap<_, [u8; FLOW_AT], [u8; FLOW_COUNT]> =
        map.try_into().map_err(|error| error_chain(&error))?;
    map.remove(&flow_key(at)).map_err(|error| error_chain(&error))
}

fn flow_key(at: &FlowAt) -> [u8; FLOW_AT] {
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let address = |of: IpAddr| -> [u8; 16] { Ipv6Addr::octets(&address(of)) };
    let Flow { src, dst, sport, dport, proto } = at.flow;
    let mut key = [0; FLOW_AT];
    key[..16].copy_from_slice(&address(src));
    key[16..32].copy_from_slice(&address(dst));
    key[32..34].copy_from_slice(&sport.to_ne_bytes());
    key[34..36].copy_from_slice(&dport.to_ne_bytes());
    key[36] = proto;
    key[38..40].copy_from_slice(&at.point.to_ne_bytes());
    key[40..44].copy_from_slice(&at.namespace.to_ne_bytes());
    key[44..].copy_from_slice(&at.interface.to_ne_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32) -> Link {
        Link { index, name: "e0".into(), ethernet: true }
    }

    #[test]
    fn interfaces_with_one_index_in_two_namespaces_are_kept_apart() {
        let mut slots = Slots::default();
        slots.add_slot(1, &link(2), InterfaceSide::Ingress, 0);
        slots.add_slot(7, &link(2), InterfaceSide::Ingress, 1);
        slots.add_slot(7, &link(3), InterfaceSide::Egress, 2);
        let table = slots.build_table().unwrap();
        let used: Vec<_> =
            table.iter().filter(|slot| slot[13] == 1).map(|slot| (slot[4], slot[10], slot[14])).collect();
        assert_eq!(used, [(1, 0, 1), (7, 1, 1), (7, 2, 0)]);
        slots.remove_point(0);
        assert!(slots.build_table().unwrap().iter().all(|slot| slot[14] == 0));
        for namespace in 10..20 {
            slots.add_slot(namespace, &link(2), InterfaceSide::Ingress, namespace as u16);
        }
        assert!(slots.build_table().is_err());
    }

    #[test]
    fn what_comes_of_reports_is_distinguished_from_other_packets() {
        let settings = KernelSettings::new(0, Some("10.0.0.9:40040".parse().unwrap()));
        let is_own = |text: &str| settings.is_own_traffic(&text.parse().unwrap());
        for own in [
            "10.0.0.1:5000->10.0.0.9:40040/udp",
            "10.0.0.9:40040->10.0.0.1:5000/udp",
            "10.0.0.9:50000->10.0.0.7:4791/udp",
            "10.0.0.7:50000->10.0.0.9:4791/udp",
        ] {
            assert!(is_own(own), "{own}");
            assert!(!KernelSettings::new(0, None).is_own_traffic(&own.parse().unwrap()), "{own}");
            assert!(!is_own(&own.replace("udp", "tcp")) && !is_own(&own.replace("0.9:", "0.8:")), "{own}");
        }
        assert!(!is_own("10.0.0.1:40040->10.0.0.9:5000/udp") && !is_own("10.0.0.1:1->10.0.0.7:4791/udp"));
    }

    #[test]
    fn key_of_a_flow_is_read_as_it_is_written() {
        let flow_text = "10.0.0.1:5000->10.0.0.2:80/tcp";
        let at =
            FlowAt { flow: flow_text.parse().unwrap(), namespace: 0xf000_0001, interface: 3, point: 258 };
        let key = flow_key(&at);
        assert_eq!(read_flow(&key[..37]), at.flow);
        assert_eq!((key[38], key[39], key[43], key[44]), (2, 1, 0xf0, 3));
    }
}
