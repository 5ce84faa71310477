//! Network namespaces: running code in one, listing its interfaces, and watching for changes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where `ip netns` keeps namespaces.
const NAMED: &str = "/run/netns";

/// A network namespace, with a socket for requests and one for notifications about its interfaces.
pub(super) struct Namespace {
    /// Its name as given; `None` for the program's own.
    pub(super) name: Option<String>,
    /// Its inode number, as the kernel's programs see it.
    pub(super) inode: u32,
    file: File,
    plain: OwnedFd,
    events: OwnedFd,
}

/// An interface as the kernel lists it.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// Whether its packets begin with an Ethernet header.
    pub(super) ethernet: bool,
}

impl Namespace {
    /// Opens a namespace by its name or path.
    pub(super) fn open(name: Option<&str>) -> io::Result<Self> {
        let file = open(&namespace_path(name))?;
        // Numbers of namespaces have 32 bits.
        let inode = file.metadata()?.ino() as u32;
        let sockets = || -> io::Result<(OwnedFd, OwnedFd)> {
            let plain =
                rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let events = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
            rustix::net::bind(&events, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
            Ok((plain, events))
        };
        let (plain, events) =
            if name.is_none() { sockets()? } else { run_in_namespace(file.as_fd(), sockets)?? };
        Ok(Self { name: name.map(str::to_owned), inode, file, plain, events })
    }

    pub(super) fn list_names() -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(NAMED) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Runs a function in the namespace, on a separate thread unless it is the program's own.
    pub(super) fn run<T: Send>(&self, what: impl FnOnce() -> T + Send) -> io::Result<T> {
        if self.name.is_none() { Ok(what()) } else { run_in_namespace(self.file.as_fd(), what) }
    }

    pub(super) fn interface_name(&self, index: u32) -> Option<String> {
        rustix::net::netdevice::index_to_name(&self.plain, index).ok()
    }

    pub(super) fn list_links(&self) -> io::Result<Vec<Link>> {
        self.run(request_links)?
    }

    /// Becomes readable when an interface is added, removed or changed.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether anything changed since the last call. Details do not matter: interfaces are listed again.
    pub(super) fn has_changed(&self) -> bool {
        let mut buffer = [0u8; 8192];
        let mut changed = false;
        // An overrun of the socket is an error, and means a missed change.
        loop {
            match rustix::net::recv(&self.events, &mut buffer, RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::AGAIN) => return changed,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOBUFS) | Ok(_) => changed = true,
                Err(_) => return changed,
            }
        }
    }
}

fn namespace_path(name: Option<&str>) -> PathBuf {
    match name {
        None => PathBuf::from("/proc/thread-self/ns/net"),
        Some(path) if path.starts_with('/') => PathBuf::from(path),
        Some(name) => PathBuf::from(NAMED).join(name),
    }
}

/// Opens the file of a namespace, and nothing else: opening a fifo would wait for a writer, and opening a
/// device may have side effects.
fn open(path: &Path) -> io::Result<File> {
    const NSFS: rustix::fs::FsWord = 0x6e73_6673;
    let there = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if rustix::fs::fstatfs(&there)?.f_type != NSFS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a namespace file"));
    }
    File::open(format!("/proc/self/fd/{}", there.as_raw_fd()))
}

/// The inode number of the namespace that currently has this name.
pub(super) fn namespace_inode(name: &str) -> io::Result<u32> {
    Ok(std::fs::metadata(namespace_path(Some(name)))?.ino() as u32)
}

fn run_in_namespace<T: Send>(file: BorrowedFd<'_>, what: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || -> io::Result<T> {
            move_into_link_name_space(file, Some(LinkNameSpaceType::Network))?;
            Ok(what())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

const RTMGRP_LINK: u32 = 1;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const FLAGS: u16 = 0x301;
const IFLA_IFNAME: u16 = 3;

/// Asks rtnetlink for all interfaces of the calling thread's namespace.
fn request_links() -> io::Result<Vec<Link>> {
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut request = Vec::with_capacity(32);
    request.extend(32u32.to_ne_bytes());
    request.extend(RTM_GETLINK.to_ne_bytes());
    request.extend(FLAGS.to_ne_bytes());
    request.resize(32, 0);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut buffer = vec![0u8; 1 << 16];
    let mut links = Vec::new();
    loop {
        let (length, _) = rustix::net::recv(&socket, &mut buffer, RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((kind, body, behind)) = parse_message(rest) {
            match kind {
                NLMSG_DONE => return Ok(links),
                NLMSG_ERROR => return Err(io::Error::other("the kernel refused to list its interfaces")),
                RTM_NEWLINK => links.extend(parse_link(body)),
                _ => {}
            }
            rest = behind;
        }
    }
}

/// Splits off the first netlink message: its type, its body, and the remaining bytes.
fn parse_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(16..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Parses an interface from a message body: `struct ifinfomsg` (16 bytes), then attributes.
fn parse_link(body: &[u8]) -> Option<Link> {
    /// ARPHRD_ETHER and ARPHRD_LOOPBACK.
    const WITH_ETHERNET: [u16; 2] = [1, 772];
    let device = u16::from_ne_bytes(*body.get(2..)?.first_chunk()?);
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let mut rest = body.get(16..)?;
    while let Some(length) = rest.first_chunk().map(|bytes| usize::from(u16::from_ne_bytes(*bytes))) {
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        if kind == IFLA_IFNAME {
            let name = value.strip_suffix(&[0]).unwrap_or(value);
            let name = String::from_utf8_lossy(name).into_owned();
            return Some(Link { index, name, ethernet: WITH_ETHERNET.contains(&device) });
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_of_a_namespace_is_opened() {
        open(Path::new("/proc/self/ns/net")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        for path in [fifo.as_path(), folder.path(), Path::new("/dev/null"), Path::new("/proc/self/status")] {
            let at = path.to_owned();
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || sender.send(open(&at).err().unwrap().to_string()));
            let error = receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("an answer");
            assert!(error.contains("not a namespace file"), "{}: {error}", path.display());
        }
    }
}
