//! How two processes set up a pair of rings: over a Unix socket with an abstract name, so that a killed
//! process leaves nothing behind.
//!
//! ```text
//! requester                                          NIC
//!   connects                                           is this my own user?
//!   is the listener my own user?
//!   magic, version, 0, token  ────────────────────▶    do I know the token?
//!   is the memory sealed, and of the given size? ◀──   magic, version, status, sizes; the memory's file
//!   puts the token into the request ring
//!   one byte  ─────────────────────────────────────▶   gives the ring to the thread that serves
//!   takes the token out of the answer ring  ◀────────  that thread puts it there
//! ```
//!
//! All numbers are little-endian. The token identifies the requester that the ring is for; the kernel
//! confirms that the other process belongs to the same user or root.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::Sizes;
use super::end::{End, Over, PushOutcome, RingRole};
use super::memory::Memory;
use crate::sys;

/// Bytes of a token.
pub const TOKEN: usize = 16;
/// Longest name of a door: what an abstract address holds.
pub const NAME_MAX: usize = 107;

const MAGIC: [u8; 8] = *b"DTARING\0";
const VERSION: u32 = 1;
const HELLO: usize = 16 + TOKEN;
const REPLY: usize = 24;
/// How long either end waits for the other's next step.
const STEP: Duration = Duration::from_millis(500);
/// How long a requester waits for its turn at the door: long enough for several others that stall.
const TURN: Duration = Duration::from_secs(3);
/// How long a requester waits until the serving thread has the ring.
const SERVED: Duration = Duration::from_secs(2);
/// Most connections at the door that have not identified themselves. A new one replaces the oldest, so that
/// silent connections block nobody.
const KNOCKS: usize = sys::WAIT_MAX - 1;
/// Pause of the door after the system refused a connection.
const AGAIN: Duration = Duration::from_millis(50);
/// Most requesters that a door knows.
const PEERS_MAX: usize = 512;

/// What a requester needs to join.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinOffer {
    /// Name of the door: an abstract Unix address of this network namespace.
    pub name: String,
    /// Identifies the joining requester: a secret, never logged.
    pub token: [u8; TOKEN],
}

impl std::fmt::Debug for JoinOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// It is on another host or in another network namespace, or has ended.
    #[error("there is no door of that name in this network namespace: {0}")]
    NoDoor(io::Error),
    /// Other users could read rkeys.
    #[error(
        "the other end runs as user {theirs} and this one as {ours}: both must be the same user, or the other one root"
    )]
    OtherUser { theirs: u32, ours: u32 },
    #[error("it was refused: {0}")]
    Refused(&'static str),
    #[error("the other end violates the protocol: {0}")]
    Protocol(&'static str),
    #[error(transparent)]
    Over(#[from] Over),
    /// No answer through the ring.
    #[error("no answer through the ring within {} ms", SERVED.as_millis())]
    Silent,
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Why a door refuses, as the reply says it.
const REFUSALS: [(u32, &str); 3] = [(1, OTHER_USER), (2, "unknown token"), (3, "the system refused memory")];
const OTHER_USER: &str = "the other end runs as another user; both must be the same user, or this one root";

/// Whether a process of user `theirs` may share memory with one of user `ours`.
fn is_trusted(theirs: u32, ours: u32) -> bool {
    theirs == ours || theirs == 0
}

fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

struct Peer {
    token: [u8; TOKEN],
    /// Its ring, while that lives.
    ring: Weak<()>,
}

type Peers = Arc<Mutex<HashMap<SocketAddrV4, Peer>>>;

/// Where requesters on this machine join. It closes when dropped; open rings stay.
pub struct Door {
    name: String,
    peers: Peers,
    stop: Arc<AtomicBool>,
    trouble: Trouble,
    thread: Option<JoinHandle<()>>,
}

/// The system's last error at a door, until it is queried.
type Trouble = Arc<Mutex<Option<io::Error>>>;

/// Joined rings, for the thread that serves them.
pub(crate) type Arrivals = Receiver<(End, [u8; TOKEN])>;

impl Door {
    /// Opens a door with this name, which should be unguessable: the first to take a name has it.
    ///
    /// # Errors
    /// The name is taken or too long, or the system refuses a thread.
    pub(crate) fn open(name: String) -> io::Result<(Door, Arrivals)> {
        let listener = UnixListener::bind_addr(&abstract_address(&name)?)?;
        listener.set_nonblocking(true)?;
        let (peers, stop): (Peers, _) = (Peers::default(), Arc::new(AtomicBool::new(false)));
        let (arrived, arrivals) = channel();
        let trouble = Trouble::default();
        let keeper = DoorThread {
            listener,
            peers: Arc::clone(&peers),
            stop: Arc::clone(&stop),
            trouble: Arc::clone(&trouble),
            arrived,
            knocks: VecDeque::new(),
        };
        let thread = std::thread::Builder::new().name("ring-door".into()).spawn(move || keeper.run())?;
        Ok((Door { name, peers, stop, trouble, thread: Some(thread) }, arrivals))
    }

    /// The system's error at this door since the last call, such as a lack of descriptors for a connection.
    /// The door goes on.
    pub fn take_trouble(&self) -> Option<io::Error> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What the requester at this address needs to join; `token` becomes its token if it has none yet. `None`
    /// if the door knows too many requesters.
    pub fn offer_ring(&self, requester: SocketAddrV4, token: [u8; TOKEN]) -> Option<JoinOffer> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= PEERS_MAX && !peers.contains_key(&requester) {
            peers.retain(|_, peer| peer.ring.strong_count() > 0);
            if peers.len() >= PEERS_MAX {
                return None;
            }
        }
        let peer = peers.entry(requester).or_insert(Peer { token, ring: Weak::new() });
        Some(JoinOffer { name: self.name.clone(), token: peer.token })
    }

    pub fn has_ring(&self, requester: SocketAddrV4) -> bool {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.get(&requester).is_some_and(|peer| peer.ring.strong_count() > 0)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The door's thread waits for a connection.
        let came = abstract_address(&self.name).and_then(|address| UnixStream::connect_addr(&address));
        if let (Ok(_), Some(thread)) = (came, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

struct DoorThread {
    listener: UnixListener,
    peers: Peers,
    stop: Arc<AtomicBool>,
    trouble: Trouble,
    arrived: Sender<(End, [u8; TOKEN])>,
    knocks: VecDeque<Knock>,
}

/// A connection that has not identified itself.
struct Knock {
    stream: UnixStream,
    hello: [u8; HELLO],
    have: usize,
    since: Instant,
}

impl DoorThread {
    fn run(mut self) {
        loop {
            let patience = self.knocks.front().map(|knock| STEP.saturating_sub(knock.since.elapsed()));
            let knocks = self.knocks.iter().map(|knock| knock.stream.as_fd());
            let all: Vec<_> = std::iter::once(self.listener.as_fd()).chain(knocks).collect();
            if let Err(error) = sys::wait_for_events(&all, sys::READABLE, patience) {
                self.report_trouble(error);
            }
            for knock in std::mem::take(&mut self.knocks) {
                if !knock.has_timed_out() {
                    self.handle_knock(knock);
                }
            }
            loop {
                match self.listener.accept() {
                    Ok(_) if self.stop.load(Ordering::Acquire) => return,
                    Ok((stream, _)) => self.open(stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        // Usually out of descriptors or memory, which may be available later.
                        self.report_trouble(error);
                        break;
                    }
                }
            }
            if self.stop.load(Ordering::Acquire) {
                return;
            }
        }
    }

    fn report_trouble(&self, error: io::Error) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        std::thread::sleep(AGAIN);
    }

    /// Accepts a connection, and reads what the requester has sent.
    fn open(&mut self, mut stream: UnixStream) {
        let Ok(theirs) = peer_user_id(&stream) else { return };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if !is_trusted(theirs, rustix::process::geteuid().as_raw()) {
            let _ = send_refusal(&mut stream, 1);
            return;
        }
        self.handle_knock(Knock { stream, hello: [0; HELLO], have: 0, since: Instant::now() });
    }

    /// Admits connections that have sent everything, and keeps the others.
    fn handle_knock(&mut self, mut knock: Knock) {
        match knock.read() {
            Ok(true) => {
                // A requester that fails here has been notified, or is gone.
                let _ = answer_hello(knock.stream, &knock.hello, &self.peers, &self.arrived);
            }
            Ok(false) => {
                if self.knocks.len() >= KNOCKS {
                    self.knocks.pop_front();
                }
                self.knocks.push_back(knock);
            }
            Err(_) => {}
        }
    }
}

impl Knock {
    fn has_timed_out(&self) -> bool {
        self.since.elapsed() >= STEP
    }

    /// Reads what has arrived; returns whether the hello is complete.
    fn read(&mut self) -> io::Result<bool> {
        while self.have < HELLO {
            match self.stream.read(&mut self.hello[self.have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn send_refusal(stream: &mut UnixStream, status: u32) -> Result<(), JoinError> {
    Ok(stream.write_all(&encode_reply(status, Sizes { requests: 0, answers: 0 }))?)
}

/// Admits one requester that has identified itself.
fn answer_hello(
    mut stream: UnixStream,
    hello: &[u8; HELLO],
    peers: &Peers,
    arrived: &Sender<(End, [u8; TOKEN])>,
) -> Result<(), JoinError> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    let (magic, rest) = hello.split_at(8);
    if magic != MAGIC || rest[..4] != VERSION.to_le_bytes() {
        return Err(JoinError::Protocol("no hello"));
    }
    let mut token = [0; TOKEN];
    token.copy_from_slice(&rest[8..]);
    let requester = {
        let peers = peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.iter().find(|(_, peer)| are_equal_secrets(&peer.token, &token)).map(|(address, _)| *address)
    };
    let Some(requester) = requester else { return send_refusal(&mut stream, 2) };
    let sizes = Sizes::USUAL;
    let Ok((memory, file)) = Memory::create_sealed(sizes.memory_words()) else {
        return send_refusal(&mut stream, 3);
    };
    send_file(&stream, &encode_reply(0, sizes), &file)?;
    drop(file);
    read_exactly(&mut stream, &mut [0])?;
    let end = End::new(memory, sizes, RingRole::Responder, stream, requester);
    if let Some(peer) = peers.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&requester) {
        peer.ring = Arc::downgrade(end.liveness_handle());
    }
    // The serving thread may have ended.
    let _ = arrived.send((end, token));
    Ok(())
}

/// For the serving thread: whether the ring starts with the token. If so, sends it back, to show the
/// requester that it is served.
pub(crate) fn confirm_ring_token(end: &mut End, token: &[u8; TOKEN]) -> Result<bool, Over> {
    let said = end.take_frame()?;
    if said.is_none_or(|said| !are_equal_secrets(&said, token)) {
        return Ok(false);
    }
    let sent = end.push(token)?;
    end.publish_frames();
    end.begin_counting();
    Ok(sent == PushOutcome::Yes)
}

/// Joins the NIC at `nic`, which made the offer. Takes at most a few seconds.
///
/// # Errors
/// There is no such door, it is another user's, or it does not serve.
pub fn join_ring(offer: &JoinOffer, nic: SocketAddrV4) -> Result<End, JoinError> {
    let mut stream = UnixStream::connect_addr(&abstract_address(&offer.name)?).map_err(JoinError::NoDoor)?;
    stream.set_read_timeout(Some(TURN))?;
    stream.set_write_timeout(Some(TURN))?;
    let (theirs, ours) = (peer_user_id(&stream)?, rustix::process::geteuid().as_raw());
    if !is_trusted(theirs, ours) {
        return Err(JoinError::OtherUser { theirs, ours });
    }
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..12].copy_from_slice(&VERSION.to_le_bytes());
    hello[16..].copy_from_slice(&offer.token);
    stream.write_all(&hello)?;
    let (reply, file) = receive_file(&stream)?;
    let number = |at: usize| u32::from_le_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
    if reply[..8] != MAGIC || number(8) != VERSION {
        return Err(JoinError::Protocol("reply of another version"));
    }
    if number(12) != 0 {
        let known = REFUSALS.iter().find(|(status, _)| *status == number(12));
        return Err(JoinError::Refused(known.map_or("no reason given", |(_, why)| why)));
    }
    let sizes = Sizes { requests: number(16) as usize, answers: number(20) as usize };
    if !sizes.are_possible() {
        return Err(JoinError::Protocol("invalid sizes"));
    }
    let file = file.ok_or(JoinError::Protocol("no memory received"))?;
    let memory = Memory::open(file.as_fd(), sizes.memory_words())?;
    let mut end = End::new(memory, sizes, RingRole::Requester, stream, nic);
    if end.push(&offer.token)? != PushOutcome::Yes {
        return Err(JoinError::Protocol("a new ring is full"));
    }
    end.publish_frames();
    end.signal_other_end()?;
    let start = Instant::now();
    while start.elapsed() < SERVED {
        if let Some(said) = end.take_frame()? {
            if !are_equal_secrets(&said, &offer.token) {
                return Err(JoinError::Protocol("a different token came back"));
            }
            end.begin_counting();
            return Ok(end);
        }
        if !end.announce_sleep()? {
            let _ = sys::wait_for_events(&[end.as_fd()], sys::READABLE, Some(SERVED / 20));
            end.cancel_sleep();
            end.read_signals()?;
        }
    }
    Err(JoinError::Silent)
}

fn encode_reply(status: u32, sizes: Sizes) -> [u8; REPLY] {
    let mut reply = [0; REPLY];
    reply[..8].copy_from_slice(&MAGIC);
    let numbers = [VERSION, status, sizes.requests as u32, sizes.answers as u32];
    for (place, number) in reply[8..].chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    reply
}

/// Compares two secrets in constant time.
fn are_equal_secrets(a: &[u8], b: &[u8; TOKEN]) -> bool {
    a.len() == TOKEN && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// The user of the process at the other end of a socket when the connection was made.
fn peer_user_id(stream: &UnixStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw())
}

/// Reads all of `bytes`, within [`STEP`] in total.
fn read_exactly(stream: &mut UnixStream, mut bytes: &mut [u8]) -> Result<(), JoinError> {
    let start = Instant::now();
    while !bytes.is_empty() {
        if start.elapsed() > STEP {
            return Err(JoinError::Protocol("it stopped in the middle"));
        }
        match stream.read(bytes) {
            Ok(0) => return Err(Over::Gone.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sends a message together with a file; it is received in one piece.
fn send_file(stream: &UnixStream, message: &[u8; REPLY], file: &OwnedFd) -> io::Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == REPLY { Ok(()) } else { Err(io::Error::other("the reply was truncated")) }
}

fn receive_file(stream: &UnixStream) -> Result<([u8; REPLY], Option<OwnedFd>), JoinError> {
    let mut reply = [0; REPLY];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut reply)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .map_err(io::Error::from)?;
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message {
            file = files.next();
        }
    }
    match received.bytes {
        REPLY => Ok((reply, file)),
        0 => Err(Over::Gone.into()),
        _ => Err(JoinError::Protocol("a short reply")),
    }
}

#[cfg(test)]
mod tests;
