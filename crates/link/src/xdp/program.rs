//! The program at the interface that takes our frames: `ebpf/take.bpf.c`, built by `make ebpf`.

use std::error::Error;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya::maps::{Array, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};

use super::{Mode, XdpConfig};
use crate::packet::NetworkInterface;
use crate::{LinkError, Result};

const OBJECT: &[u8] = aya::include_bytes_aligned!("../../ebpf/take.bpf.o");

/// The first kernel that attaches XDP programs through a file descriptor.
const LINUX: (u32, u32) = (5, 9);

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
        let mut loaded = load(name, queues)?;
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
        let program = xdp_program(&mut loaded)?;
        let modes: &[Mode] = match config.mode {
            Some(mode) => &[mode],
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
                    return Ok((Self { _attached: attached, loaded, interface: name.clone() }, *mode));
                }
                Err(refusal) => {
                    let told = explain_refusal(name, "an XDP program", &refusal);
                    // Only if the driver does not support it, try without.
                    if !matches!(told, LinkError::NoXdp { .. }) {
                        return Err(told);
                    }
                    error = Some(told);
                }
            }
        }
        Err(error.unwrap_or_else(|| LinkError::NoXdp { interface: name.clone(), reason: "no mode".into() }))
    }

    /// From now on, sends frames to us on receive queue `queue` to a socket.
    pub(super) fn add(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<()> {
        let mut sockets: XskMap<_> = program_map(&mut self.loaded, "sockets")?;
        sockets
            .set(queue, socket.as_raw_fd(), 0)
            .map_err(|error| explain_refusal(&self.interface, "a map of AF_XDP sockets", &error))
    }
}

/// Loads the program without attaching it.
pub(super) fn probe_loading(any: &NetworkInterface) -> Result<()> {
    load(&any.name, 1).map(drop)
}

/// Loads the program and its maps into the kernel, for an interface with `queues` queues.
fn load(interface: &str, queues: u32) -> Result<Ebpf> {
    // An older one would attach it so that it stays when this process is killed.
    if !rustix::system::uname().release().to_str().is_ok_and(|release| is_release_at_least(release, LINUX)) {
        let reason = format!("the kernel is older than Linux {}.{}", LINUX.0, LINUX.1);
        return Err(LinkError::NoXdp { interface: interface.into(), reason });
    }
    let failed = |error: &(dyn Error + 'static)| explain_refusal(interface, "an XDP program", error);
    // Nothing in it depends on the kernel's types.
    let mut loaded = EbpfLoader::new()
        .btf(None)
        .map_max_entries("sockets", queues)
        .load(OBJECT)
        .map_err(|error| failed(&error))?;
    xdp_program(&mut loaded)?.load().map_err(|error| failed(&error))?;
    Ok(loaded)
}

fn xdp_program(loaded: &mut Ebpf) -> Result<&mut Xdp> {
    loaded.program_mut("take").and_then(|program| program.try_into().ok()).ok_or_else(|| {
        LinkError::io_with_context("the XDP program is damaged")(io::ErrorKind::InvalidData.into())
    })
}

fn program_map<'a, T: TryFrom<&'a mut aya::maps::Map>>(loaded: &'a mut Ebpf, name: &str) -> Result<T> {
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

/// The system's error, somewhere in an error's causes.
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
    fn the_object_has_what_the_loader_looks_for() {
        let object = aya::include_bytes_aligned!("../../ebpf/take.bpf.o");
        for name in ["sockets", "ports", "address", "take"] {
            let found = object.windows(name.len() + 1).any(|at| at == [name.as_bytes(), &[0]].concat());
            assert!(found, "{name}");
        }
    }
}
