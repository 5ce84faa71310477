//! Accepts connections: time limits for TLS and the first bytes of HTTP/2, a maximum of connections, and no busy loop
//! on errors.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dta_proto::backoff::Backoff;
use dta_proto::counter::collector as names;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_stream::wrappers::ReceiverStream;

use crate::transport::ServerLimits;
use crate::transport::gate::{Gate, GatePass, GateResult};
use crate::transport::peer::{Identity, Peer, caller_name};
use crate::transport::pool::Pool;
use crate::transport::quiet::Quiet;
use crate::transport::stream::{ConnectionCloser, Http2Connection, PREFACE, Transport};

/// Pauses after errors of the listener, such as too many open files.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// First byte from a TLS client: a handshake record (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// Connections past their handshake, waiting for tonic.
const QUEUE: usize = 16;

/// How to listen.
#[derive(Clone, Debug)]
pub struct Listen {
    /// How many connections, and for how long.
    pub limits: ServerLimits,
    /// TLS, if clients must have a certificate.
    pub tls: Option<Arc<ServerConfig>>,
}

/// The connections, for [`tonic::transport::Server::serve_with_incoming_shutdown`]. Dropping it closes the listener.
pub type Incoming = ReceiverStream<io::Result<Http2Connection>>;

dta_proto::shared_counters! {
    /// What became of connections, and of calls that were not admitted.
    pub struct ConnectionCounters {
        accepted = names::CONNECTIONS_ACCEPTED,
        refused = names::CONNECTIONS_REFUSED,
        silent = names::CONNECTIONS_SILENT,
        displaced = names::CONNECTIONS_DISPLACED,
        failed = names::CONNECTIONS_HANDSHAKE_FAILED,
        accept_errors = names::CONNECTIONS_ACCEPT_ERRORS,
        pub(crate) unread = names::CONNECTIONS_UNREAD,
        pub(crate) calls_refused = names::CALLS_REFUSED,
        pub(crate) calls_late = names::CALLS_LATE,
        pub(crate) calls_displaced = names::CALLS_DISPLACED,
    }
}

/// No other memory is published through these numbers.
pub(crate) fn increment_counter(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Starts to accept on a listener. Must be called within a tokio runtime.
pub fn accept_tcp(listener: TcpListener, listen: Listen, counters: Arc<ConnectionCounters>) -> Incoming {
    accept_until(Arc::new(listener), listen, counters, std::future::pending())
}

/// Like [`accept_tcp`], until `stopped` is ready; the listener stays the caller's. Connections in their handshake by
/// then are still delivered; then the stream ends.
pub fn accept_until(
    listener: Arc<TcpListener>,
    listen: Listen,
    counters: Arc<ConnectionCounters>,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> Incoming {
    let one = move || {
        let listener = listener.clone();
        async move {
            let (stream, address) = listener.accept().await?;
            Ok((Socket::Tcp(stream), address.ip()))
        }
    };
    accept_with(one, listen, counters, stopped)
}

/// Like [`accept_tcp`], on a Unix socket: all its clients are one caller, at 127.0.0.1, without TLS.
pub fn accept_unix(
    listener: UnixListener,
    limits: ServerLimits,
    counters: Arc<ConnectionCounters>,
) -> Incoming {
    let listener = Arc::new(listener);
    let one = move || {
        let listener = listener.clone();
        async move {
            let (stream, _) = listener.accept().await?;
            Ok((Socket::Unix(stream), IpAddr::V4(Ipv4Addr::LOCALHOST)))
        }
    };
    accept_with(one, Listen { limits, tls: None }, counters, std::future::pending())
}

/// A connection before its handshake.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

fn accept_with<A, F>(
    accept: A,
    listen: Listen,
    counters: Arc<ConnectionCounters>,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> Incoming
where
    A: Fn() -> F + Send + 'static,
    F: Future<Output = io::Result<(Socket, IpAddr)>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        tokio::select! {
            () = run(accept, listen, counters, sender) => {}
            () = stopped => {}
        }
    });
    ReceiverStream::new(receiver)
}

/// State shared by the handshakes of a listener.
struct ListenerState {
    listen: Listen,
    gate: Arc<Gate>,
    /// By caller.
    streams: Arc<Pool>,
    counters: Arc<ConnectionCounters>,
    quiet: Mutex<Quiet>,
    sender: mpsc::Sender<io::Result<Http2Connection>>,
}

async fn run<A, F>(
    accept: A,
    listen: Listen,
    counters: Arc<ConnectionCounters>,
    sender: mpsc::Sender<io::Result<Http2Connection>>,
) where
    A: Fn() -> F,
    F: Future<Output = io::Result<(Socket, IpAddr)>>,
{
    let shared = Arc::new(ListenerState {
        gate: Gate::new(&listen.limits),
        streams: Pool::new(usize::MAX, listen.limits.streams_per_caller),
        listen,
        counters,
        quiet: Mutex::default(),
        sender,
    });
    let (mut errors, mut full) = (Quiet::default(), Quiet::default());
    let mut again = AGAIN;
    loop {
        let accepted = tokio::select! {
            accepted = accept() => accepted,
            () = shared.sender.closed() => return,
        };
        match accepted {
            Ok((socket, address)) => {
                again = AGAIN;
                let GateResult::Passed(place, displaced) = shared.gate.try_enter(address) else {
                    increment_counter(&shared.counters.refused);
                    if let Some(times) = full.count_event(Instant::now()) {
                        tracing::warn!(%address, times, "no connection slot is free for this address: refused");
                    }
                    continue;
                };
                if displaced {
                    increment_counter(&shared.counters.displaced);
                }
                let number = place.place_number();
                let task = tokio::spawn(establish_connection(shared.clone(), socket, address, place));
                shared.gate.set_handshake_task(number, task.abort_handle());
            }
            // An error of a single client.
            Err(error) if is_of_one_connection(&error) => increment_counter(&shared.counters.accept_errors),
            Err(error) => {
                increment_counter(&shared.counters.accept_errors);
                if let Some(times) = errors.count_event(Instant::now()) {
                    tracing::error!(%error, times, "cannot accept connections; trying again every second");
                }
                tokio::select! {
                    () = tokio::time::sleep(again.next_pause()) => {}
                    () = shared.sender.closed() => return,
                }
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Serves one connection until tonic takes it.
async fn establish_connection(shared: Arc<ListenerState>, socket: Socket, address: IpAddr, place: GatePass) {
    let done = tokio::time::timeout(shared.listen.limits.handshake, handshake(&shared, socket)).await;
    let reason = match done {
        Ok(Ok((transport, identity))) => {
            let (line, cut) = ConnectionCloser::new();
            let line = Arc::new(line);
            if !place.finish_handshake(line.clone()) {
                return;
            }
            let caller = caller_name(&identity, address);
            let (identity, streams) = (Arc::new(identity), shared.streams.clone());
            let peer = Peer { address, identity, caller, streams, line };
            increment_counter(&shared.counters.accepted);
            // `Err` means that the server is ending.
            let _ = shared.sender.send(Ok(Http2Connection::new(transport, peer, cut, place))).await;
            return;
        }
        Ok(Err(Failed::Left)) => return,
        Ok(Err(Failed::Said(what))) => {
            increment_counter(&shared.counters.failed);
            what
        }
        Err(_) => {
            increment_counter(&shared.counters.silent);
            "it did not complete the handshake in time".to_owned()
        }
    };
    let line = shared.quiet.lock().unwrap_or_else(PoisonError::into_inner).count_event(Instant::now());
    if let Some(times) = line {
        tracing::warn!(%address, times, reason, "a connection failed");
    }
}

/// Why a connection was not established.
enum Failed {
    /// The client left before it sent anything, like a port check.
    Left,
    /// The error.
    Said(String),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Said(error.to_string())
    }
}

async fn handshake(shared: &ListenerState, socket: Socket) -> Result<(Box<dyn Transport>, Identity), Failed> {
    let (mut transport, identity): (Box<dyn Transport>, _) = match socket {
        Socket::Tcp(stream) => negotiate_tls(shared, stream).await?,
        Socket::Unix(stream) => (Box::new(stream), Identity::Anybody),
    };
    let mut preface = [0; PREFACE.len()];
    match transport.read_exact(&mut preface).await {
        Ok(_) if preface == *PREFACE => Ok((transport, identity)),
        Ok(_) => Err(Failed::Said("it does not speak HTTP/2".into())),
        Err(error) => Err(error.into()),
    }
}

/// Does the TLS handshake, if required.
async fn negotiate_tls(
    shared: &ListenerState,
    stream: TcpStream,
) -> Result<(Box<dyn Transport>, Identity), Failed> {
    // Small answers must not wait for the client's delayed acknowledgement of the previous segment.
    stream.set_nodelay(true)?;
    let mut first = [0];
    if stream.peek(&mut first).await.map_err(|_| Failed::Left)? == 0 {
        return Err(Failed::Left);
    }
    Ok(match &shared.listen.tls {
        None if first[0] == TLS_HANDSHAKE => {
            send_final_message(stream, b"this port does not speak TLS\r\n").await?;
            return Err(Failed::Said("it speaks TLS, which this port does not".into()));
        }
        None => (Box::new(stream), Identity::Anybody),
        Some(_) if first[0] == PREFACE[0] => {
            wants_tls(stream).await?;
            return Err(Failed::Said("it does not speak TLS, which this port requires".into()));
        }
        Some(config) => {
            let stream = TlsAcceptor::from(config.clone()).accept(stream).await?;
            let certificates = stream.get_ref().1.peer_certificates();
            let certificate = certificates.and_then(|chain| chain.first());
            let identity =
                certificate.map_or(Identity::Nameless("there is none"), Identity::from_certificate);
            (Box::new(stream), identity)
        }
    })
}

/// Tells an HTTP/2 client without TLS what is missing, in its own protocol: empty SETTINGS, then GOAWAY with
/// INADEQUATE_SECURITY (RFC 9113 sections 6.5, 6.8 and 7).
async fn wants_tls(stream: TcpStream) -> io::Result<()> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const WORDS: &[u8] = b"this port wants TLS";
    const LEN: u8 = 8 + WORDS.len() as u8;
    const GOAWAY: [u8; 17] = [0, 0, LEN, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc];
    send_final_message(stream, &[&SETTINGS[..], &GOAWAY, WORDS].concat()).await
}

/// Sends a final message.
async fn send_final_message(mut stream: TcpStream, words: &[u8]) -> io::Result<()> {
    stream.write_all(words).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would discard the answer (RST).
    let mut rest = [0; 256];
    while stream.read(&mut rest).await? != 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicUsize;

    use tokio_stream::StreamExt;
    use tonic::transport::server::Connected;

    use super::*;
    use crate::transport::testing::test_limits;

    #[tokio::test]
    async fn errors_of_the_listener_do_not_make_a_busy_loop() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let accept = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            // EMFILE
            std::future::ready(Err(io::Error::from_raw_os_error(24)))
        };
        let counters = Arc::new(ConnectionCounters::default());
        let listen = Listen { limits: test_limits(), tls: None };
        let begun = Instant::now();
        let _incoming = accept_with(accept, listen, counters.clone(), std::future::pending());
        tokio::time::sleep(Duration::from_millis(500)).await;
        let calls = calls.load(Ordering::Relaxed);
        let elapsed = begun.elapsed();
        // The pauses soon last a second.
        let most = 6 + elapsed.as_secs() as usize;
        assert!((1..=most).contains(&calls), "{calls} calls in {elapsed:?}");
        assert_eq!(counters.accept_errors.load(Ordering::Relaxed), calls as u64);
    }

    async fn listening(limits: ServerLimits) -> (SocketAddr, Incoming, Arc<ConnectionCounters>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counters = Arc::new(ConnectionCounters::default());
        (address, accept_tcp(listener, Listen { limits, tls: None }, counters.clone()), counters)
    }

    #[tokio::test]
    async fn a_silent_client_is_cut_off_and_one_that_speaks_is_not() {
        // Long enough for the good client on a busy machine.
        const HANDSHAKE: Duration = Duration::from_secs(20);
        let (address, mut incoming, counters) =
            listening(ServerLimits { handshake: HANDSHAKE, ..test_limits() }).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(&PREFACE[..20]).await.unwrap();
        let mut good = TcpStream::connect(address).await.unwrap();
        good.write_all(PREFACE).await.unwrap();
        good.write_all(b"what follows").await.unwrap();
        let connection = tokio::time::timeout(Duration::from_secs(60), incoming.next()).await.unwrap();
        let mut connection = connection.unwrap().unwrap();
        let accepted = Instant::now();
        let mut read = [0; PREFACE.len() + 12];
        connection.read_exact(&mut read).await.unwrap();
        assert_eq!(read[..], [&PREFACE[..], b"what follows"].concat());
        for stream in [&mut silent, &mut slow] {
            let mut byte = [0];
            let ended = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut byte)).await;
            assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
        }
        assert_eq!(counters.silent.load(Ordering::Relaxed), 2);
        // The good one is still there after the handshake timeout.
        tokio::time::sleep_until((accepted + HANDSHAKE + Duration::from_millis(100)).into()).await;
        good.write_all(b"!").await.unwrap();
        assert_eq!(connection.read_u8().await.unwrap(), b'!');
    }

    #[tokio::test]
    async fn silent_connections_leave_for_new_ones_and_others_stay() {
        let most = ServerLimits { connections: 4, connections_per_address: 4, ..test_limits() };
        let (address, mut incoming, counters) = listening(most).await;
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut good = Vec::new();
        for _ in 0..4 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(PREFACE).await.unwrap();
            let connection = tokio::time::timeout(Duration::from_secs(60), incoming.next()).await.unwrap();
            let connection = connection.unwrap().unwrap();
            std::mem::forget(connection.connect_info().line.begin_call());
            good.push((stream, connection));
        }
        // All four places are taken by connections past their handshake.
        let mut late = TcpStream::connect(address).await.unwrap();
        let _ = late.write_all(PREFACE).await;
        assert!(matches!(late.read(&mut [0]).await, Ok(0) | Err(_)));
        assert_eq!(counters.refused.load(Ordering::Relaxed), 1);
        good.pop();
        let mut next = TcpStream::connect(address).await.unwrap();
        next.write_all(PREFACE).await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), incoming.next()).await.unwrap().unwrap().unwrap();
    }

    #[tokio::test]
    async fn dropping_it_closes_the_listener() {
        let (address, incoming, _) = listening(test_limits()).await;
        drop(incoming);
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address).await.is_ok() {
            assert!(Instant::now() < until, "still listening");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
