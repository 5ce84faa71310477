//! The programs at an interface that take our frames, built by `make ebpf`: `ebpf/take.bpf.c` for links of frames,
//! `ebpf/intake.bpf.c` for listeners, and `ebpf/events.bpf.c` for those whose unchanged reports it drops.

use std::error::Error;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya::maps::{Array, HashMap, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};

use super::events::{EventLimits, EventTables, ReportForm};
use super::{Mode, XdpConfig};
use crate::packet::NetworkInterface;
use crate::{LinkError, Result};

/// Most receive queues of an interface whose datagrams are taken; as in `ebpf/intake.bpf.h`.
pub(super) const INTAKE_QUEUES: u32 = 64;
/// Most listeners at an interface; as in `ebpf/intake.bpf.h`.
pub(super) const INTAKE_LISTENERS: u32 = 32;

/// A program in an object, by its name.
struct ProgramObject {
    name: &'static str,
    bytes: &'static [u8],
}

const TAKE: ProgramObject =
    ProgramObject { name: "take", bytes: aya::include_bytes_aligned!("../../ebpf/take.bpf.o") };
const INTAKE: ProgramObject =
    ProgramObject { name: "intake", bytes: aya::include_bytes_aligned!("../../ebpf/intake.bpf.o") };
/// The intake program that also drops unchanged reports.
const EVENTS: ProgramObject =
    ProgramObject { name: "events", bytes: aya::include_bytes_aligned!("../../ebpf/events.bpf.o") };

/// The first kernel that attaches XDP programs through a file descriptor.
const LINUX: (u32, u32) = (5, 9);

/// Attempts to load a program: the verifier gives up with EAGAIN when a signal comes. libbpf tries as often.
const LOADS: usize = 5;

/// A program attached to an interface until this is dropped.
pub(super) struct Program {
    // First: it is detached before anything it uses is gone.
    _attached: FdLink,
    loaded: Ebpf,
    interface: String,
}

impl Program {
    /// Loads the program for `queues` queues, and attaches it to the interface. Until there are sockets, it
    /// leaves all frames to the kernel.
    pub(super) fn load(
        interface: &NetworkInterface,
        config: &XdpConfig,
        queues: u32,
    ) -> Result<(Self, Mode)> {
        let name = &interface.name;
        let mut loaded = TAKE.load(name, &[("sockets", queues)])?;
        let failed = |error: &(dyn Error + 'static)| explain_refusal(name, "an XDP program", error);
        let mut words = [0u64; 1024];
        for port in &config.ports {
            words[usize::from(*port) / 64] |= 1 << (port % 64);
        }
        let mut ports: Array<_, u64> = program_map(&mut loaded, "ports")?;
        for (index, word) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
            ports.set(index as u32, word, 0).map_err(|error| failed(&error))?;
        }
        if let Some(ip) = config.address {
            let mut address: Array<_, u32> = program_map(&mut loaded, "address")?;
            address.set(0, u32::from_ne_bytes(ip.octets()), 0).map_err(|error| failed(&error))?;
        }
        if config.ipv6_address.is_some() {
            let mut takes_ipv6: Array<_, u32> = program_map(&mut loaded, "takes_ipv6")?;
            takes_ipv6.set(0, 1, 0).map_err(|error| failed(&error))?;
        }
        TAKE.attach(interface, loaded, config.mode)
    }

    /// From now on, sends our frames on receive queue `queue` to a socket.
    pub(super) fn add(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<()> {
        let mut sockets: XskMap<_> = program_map(&mut self.loaded, "sockets")?;
        sockets
            .set(queue, socket.as_raw_fd(), 0)
            .map_err(|error| explain_refusal(&self.interface, "a map of AF_XDP sockets", &error))
    }
}

/// The program that takes datagrams to listeners, attached to an interface until this is dropped.
pub(super) struct IntakeProgram {
    program: Program,
    /// As `struct interface`: its Ethernet address, number of listeners, first address, and the listeners' ports.
    own: [u8; OWN_BYTES],
}

const OWN_BYTES: usize = 12 + 2 * INTAKE_LISTENERS as usize;

impl IntakeProgram {
    /// Loads the program for listeners at these addresses of the interface, and attaches it. Until there are
    /// listeners, it leaves all frames to the kernel.
    pub(super) fn load(
        interface: &NetworkInterface,
        addresses: &[Ipv4Addr],
        mode: Option<Mode>,
        events: Option<EventLimits>,
    ) -> Result<(Self, Mode)> {
        let (first, others) =
            addresses.split_first().ok_or_else(|| LinkError::NoAddress(interface.name.clone()))?;
        let mut entries = vec![("addresses", others.len().max(1) as u32)];
        entries.extend(events.iter().flat_map(EventLimits::map_entries));
        let object = if events.is_some() { EVENTS } else { INTAKE };
        let mut loaded = object.load(&interface.name, &entries)?;
        let mut map: HashMap<_, u32, u32> = program_map(&mut loaded, "addresses")?;
        for address in others {
            map.insert(u32::from_ne_bytes(address.octets()), 0, 0)
                .map_err(|error| explain_refusal(&interface.name, "a map of addresses", &error))?;
        }
        let mut own = [0; OWN_BYTES];
        own[..6].copy_from_slice(&interface.mac);
        own[8..12].copy_from_slice(&first.octets());
        let (program, mode) = object.attach(interface, loaded, mode)?;
        Ok((Self { program, own }, mode))
    }

    /// The tables of a program with events; they can be taken once.
    pub(super) fn event_tables(&mut self, limits: &EventLimits) -> Result<EventTables> {
        EventTables::map(&mut self.program.loaded, limits).map_err(|error| {
            explain_refusal(&self.program.interface, "the tables of an XDP program", &*error)
        })
    }

    /// From now on, drops unchanged reports of a listener.
    pub(super) fn drop_unchanged(
        &mut self,
        listener: u32,
        form: ReportForm,
        limits: &EventLimits,
    ) -> Result<()> {
        let mut readings: Array<_, u64> = program_map(&mut self.program.loaded, "readings")?;
        let reading = form as u64 | u64::from(limits.buckets() - 1) << 32;
        readings
            .set(listener, reading, 0)
            .map_err(|error| explain_refusal(&self.program.interface, "a map of listeners", &error))
    }

    /// From now on, sends a listener's datagrams on a receive queue to a socket.
    pub(super) fn add_socket(&mut self, listener: u32, queue: u32, socket: BorrowedFd<'_>) -> Result<()> {
        self.program.add(listener * INTAKE_QUEUES + queue, socket)
    }

    /// From now on, datagrams to this port of any address belong to a listener; listeners are numbered from 0.
    pub(super) fn add_listener(&mut self, listener: u32, port: u16) -> Result<()> {
        let at = 12 + 2 * listener as usize;
        self.own[at..at + 2].copy_from_slice(&port.to_be_bytes());
        self.own[6..8].copy_from_slice(&(listener as u16 + 1).to_ne_bytes());
        let mut own: Array<_, [u8; OWN_BYTES]> = program_map(&mut self.program.loaded, "own")?;
        own.set(0, self.own, 0)
            .map_err(|error| explain_refusal(&self.program.interface, "a map of listeners", &error))
    }
}

/// Loads the programs without attaching them.
pub(super) fn probe_loading(any: &NetworkInterface) -> Result<()> {
    TAKE.load(&any.name, &[("sockets", 1)])?;
    INTAKE.load(&any.name, &[]).map(drop)
}

/// Loads the program that drops unchanged reports, without attaching it.
pub(super) fn probe_loading_events() -> Result<()> {
    EVENTS.load("any interface", &[]).map(drop)
}

impl ProgramObject {
    /// Loads the program and its maps into the kernel; `entries` gives the sizes of maps.
    fn load(&self, interface: &str, entries: &[(&str, u32)]) -> Result<Ebpf> {
        // An older kernel would attach it in a way that survives this process being killed.
        let release = rustix::system::uname();
        if !release.release().to_str().is_ok_and(|release| is_release_at_least(release, LINUX)) {
            let reason = format!("the kernel is older than Linux {}.{}", LINUX.0, LINUX.1);
            return Err(LinkError::NoXdp { interface: interface.into(), reason });
        }
        let failed = |error: &(dyn Error + 'static)| explain_refusal(interface, "an XDP program", error);
        // Nothing in it depends on the kernel's types.
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        for (map, count) in entries {
            loader.map_max_entries(map, *count);
        }
        let mut loaded = loader.load(self.bytes).map_err(|error| failed(&error))?;
        let program = self.find_program(&mut loaded)?;
        let mut tries = 1;
        while let Err(error) = program.load() {
            if find_errno(&error) != Some(libc::EAGAIN) || tries == LOADS {
                return Err(failed(&error));
            }
            tries += 1;
        }
        Ok(loaded)
    }

    /// Attaches it to an interface, in this mode or the first possible one.
    fn attach(
        &self,
        interface: &NetworkInterface,
        mut loaded: Ebpf,
        mode: Option<Mode>,
    ) -> Result<(Program, Mode)> {
        let name = &interface.name;
        let failed = |error: &(dyn Error + 'static)| explain_refusal(name, "an XDP program", error);
        let program = self.find_program(&mut loaded)?;
        let modes: &[Mode] = match &mode {
            Some(mode) => std::slice::from_ref(mode),
            None => &[Mode::Native, Mode::Generic],
        };
        let mut error = None;
        for mode in modes {
            let wish = match mode {
                Mode::Native => XdpMode::Driver,
                Mode::Generic => XdpMode::Skb,
            };
            match program.attach_to_if_index(interface.index, wish) {
                Ok(id) => {
                    let attached = program
                        .take_link(id)
                        .map_err(|error| failed(&error))
                        .and_then(|link| FdLink::try_from(link).map_err(|error| failed(&error)))?;
                    return Ok((Program { _attached: attached, loaded, interface: name.clone() }, *mode));
                }
                Err(refusal) => {
                    let explained = explain_refusal(name, "an XDP program", &refusal);
                    // Tries the next mode only if the driver does not support this one.
                    if !matches!(explained, LinkError::NoXdp { .. }) {
                        return Err(explained);
                    }
                    error = Some(explained);
                }
            }
        }
        Err(error.unwrap_or_else(|| LinkError::NoXdp { interface: name.clone(), reason: "no mode".into() }))
    }

    fn find_program<'a>(&self, loaded: &'a mut Ebpf) -> Result<&'a mut Xdp> {
        loaded.program_mut(self.name).and_then(|program| program.try_into().ok()).ok_or_else(|| {
            LinkError::io_with_context("the XDP program is damaged")(io::ErrorKind::InvalidData.into())
        })
    }
}

pub(super) fn program_map<'a, T: TryFrom<&'a mut aya::maps::Map>>(
    loaded: &'a mut Ebpf,
    name: &str,
) -> Result<T> {
    loaded.map_mut(name).and_then(|map| T::try_from(map).ok()).ok_or_else(|| {
        LinkError::io_with_context("the XDP program is damaged")(io::ErrorKind::InvalidData.into())
    })
}

fn explain_refusal(interface: &str, what: &'static str, error: &(dyn Error + 'static)) -> LinkError {
    let interface = interface.to_owned();
    let capability = "CAP_BPF and CAP_NET_ADMIN";
    match find_errno(error) {
        Some(libc::EPERM | libc::EACCES) => LinkError::NeedsXdp { what, interface, capability },
        Some(libc::EBUSY | libc::EEXIST) => LinkError::XdpInUse(interface),
        Some(libc::ENODEV) => LinkError::NoInterface(interface),
        Some(errno) => {
            let reason = format!("{what} was refused: {}", io::Error::from_raw_os_error(errno));
            LinkError::NoXdp { interface, reason }
        }
        None => LinkError::NoXdp { interface, reason: format!("{what} was refused: {error}") },
    }
}

/// The system's error among the causes of an error.
fn find_errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut below = Some(error);
    while let Some(error) = below {
        if let Some(errno) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(errno);
        }
        below = error.source();
    }
    None
}

/// Whether a kernel release such as `6.1.0-18-amd64` is at least a version.
fn is_release_at_least(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor) >= version,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_the_kernel() {
        for (release, from) in
            [("6.1.0-18-amd64", true), ("5.9.0", true), ("5.8.18", false), ("4.20", false), ("odd", false)]
        {
            assert_eq!(is_release_at_least(release, LINUX), from, "{release}");
        }
    }

    #[test]
    fn the_objects_have_what_the_loader_looks_for() {
        let of_take: &[_] = &["sockets", "ports", "address", "takes_ipv6"];
        let of_intake: &[_] = &["sockets", "addresses", "own"];
        let of_events =
            [of_intake, &["states", "queues", "buckets", "templates", "slots", "readings", "sources"]]
                .concat();
        for (object, maps) in [(TAKE, of_take), (INTAKE, of_intake), (EVENTS, &of_events)] {
            for name in maps.iter().chain([&object.name]) {
                let found =
                    object.bytes.windows(name.len() + 1).any(|at| at == [name.as_bytes(), &[0]].concat());
                assert!(found, "{name} in {}", object.name);
            }
        }
        let source = include_str!("../../ebpf/intake.bpf.h");
        for (name, number) in [("QUEUES", INTAKE_QUEUES), ("LISTENERS", INTAKE_LISTENERS)] {
            assert!(source.contains(&format!("#define {name} {number}\n")), "{name}");
        }
    }
}
