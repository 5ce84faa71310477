//! The layer in front of a service: who may call at all, and how many calls run at a time.
//!
//! A call is admitted once its request is complete, and holds its places until its work has ended and its answer has
//! been sent. So calls without a body, cancelled calls and unread answers cannot make a server do or hold more than
//! its [`ServerLimits`] allow.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tonic::Status;
use tonic::body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::transport::accept::{ConnectionCounters, increment_counter};
use crate::transport::call::{AnswerBody, CALL, CallPlaces, Sending, encode_answer};
use crate::transport::peer::{Identity, Peer};
use crate::transport::pool::{Permit, Pool};
use crate::transport::request::{RequestBudget, receive_message};
use crate::transport::share::Shares;
use crate::transport::stream::ConnectionCloser;
use crate::transport::{LONGEST_ANSWER, ServerLimits};

/// Simultaneous long answers of the standard services.
const STREAMS: usize = 256;

/// The kind of a method, which decides what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One message, and an answer of at most [`LONGEST_ANSWER`] bytes.
    Ordinary,
    /// One message, and an answer as long as those of all of a caller's calls together: it takes all of their places.
    Large,
    /// Must not wait for other methods (a renewal, for example): it has its own places and threads.
    First,
    /// A stream that the service itself limits.
    Tail,
    /// A stream of which each caller may have few.
    Stream,
}

impl Method {
    /// The number of call places that it takes.
    fn places_needed(self, limits: &ServerLimits) -> usize {
        if self == Self::Large { limits.calls_per_caller.min(limits.calls) } else { 1 }
    }

    /// Its longest answer in bytes; streams have no such limit.
    pub fn longest_answer(self, limits: &ServerLimits) -> usize {
        self.places_needed(limits) * LONGEST_ANSWER
    }

    /// The kind of a method of the standard services; `None` if it is not one of theirs.
    fn from_standard_path(path: &str) -> Option<Self> {
        match path {
            "/grpc.health.v1.Health/Check" => Some(Self::First),
            path if path.starts_with("/grpc.") => Some(Self::Stream),
            _ => None,
        }
    }
}

/// A tower layer over all connections of a server. Calls beyond the limits wait.
#[derive(Clone)]
pub struct Admission(Arc<AdmissionState>);

struct AdmissionState {
    limits: ServerLimits,
    method: fn(&str) -> Method,
    ordinary: Shares,
    first: Shares,
    streams: Arc<Pool>,
    /// Threads for calls that are not [`Method::First`].
    threads: Arc<Pool>,
    counters: Arc<ConnectionCounters>,
}

impl Admission {
    /// A layer with these `limits`. `method` returns the kind of the method at a path of the server's own service.
    pub fn new(limits: ServerLimits, method: fn(&str) -> Method, counters: Arc<ConnectionCounters>) -> Self {
        Self(Arc::new(AdmissionState {
            limits,
            method,
            ordinary: Shares::for_ordinary_calls(&limits),
            first: Shares::for_first_calls(),
            streams: Pool::new(STREAMS, limits.streams_per_caller),
            threads: Pool::new(limits.threads, limits.threads),
            counters,
        }))
    }
}

impl AdmissionState {
    /// Reads a request, and waits for its places.
    async fn admit_request(
        &self,
        method: Method,
        peer: &Peer,
        request: Request<Body>,
    ) -> Result<(Request<Body>, CallPlaces), Status> {
        let shares = if method == Method::First { &self.first } else { &self.ordinary };
        let (caller, counters) = (&peer.caller, &*self.counters);
        let _waiting = shares.waiting.try_acquire(caller).ok_or_else(|| {
            increment_counter(&counters.calls_refused);
            Status::resource_exhausted("too many calls are already waiting; call again later")
        })?;
        let (line, displaced) = ConnectionCloser::new();
        let room = RequestBudget { pool: &shares.bodies, caller, line: Arc::new(line), counters };
        let place = shares.calls.take(caller, method.places_needed(&self.limits), &counters.unread);
        let admitted = async {
            // Its messages come while it is being answered.
            if request.uri().path().starts_with("/grpc.reflection.") {
                return Ok::<_, Status>((request, place.await));
            }
            let (parts, body) = request.into_parts();
            let received = receive_message(body, room).await?;
            let place = place.await;
            received.begin_processing();
            Ok((Request::from_parts(parts, Body::new(received)), place))
        };
        let (request, place) = tokio::select! {
            admitted = admitted => admitted?,
            Ok(()) = displaced => return Err(Status::resource_exhausted(
                "its message took too long while others waited for its room; call again later",
            )),
        };
        let threads = (method != Method::First).then(|| self.threads.clone());
        Ok((request, CallPlaces { place, threads }))
    }

    /// Sends an answer that holds the call's places until it is sent.
    fn send(
        &self,
        method: Method,
        peer: &Peer,
        held: Arc<CallPlaces>,
        answer: Response<Body>,
    ) -> Response<Body> {
        if http_body::Body::is_end_stream(answer.body()) {
            return answer;
        }
        let (line, limit, counters) = (peer.line.clone(), self.limits.call, self.counters.clone());
        held.place.mark_idle(line.clone());
        let (sender, sent) = oneshot::channel();
        let sending = Arc::new(Sending { _held: held, _sent: sender });
        tokio::spawn(async move {
            if tokio::time::timeout(limit, sent).await.is_err() && line.close_connection() {
                increment_counter(&counters.unread);
            }
        });
        let left = method.longest_answer(&self.limits);
        answer.map(|body| Body::new(AnswerBody { body, sending, left }))
    }
}

impl<S> Layer<S> for Admission {
    type Service = Admitted<S>;

    fn layer(&self, inner: S) -> Admitted<S> {
        Admitted { inner, admission: self.clone() }
    }
}

/// A service behind [`Admission`].
#[derive(Clone)]
pub struct Admitted<S> {
    inner: S,
    admission: Admission,
}

impl<S> Service<Request<Body>> for Admitted<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The clone that reported ready must be the one that is called.
        let next = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, next);
        let Admission(admission) = self.admission.clone();
        Box::pin(async move {
            let Some(peer) = request.extensions().get::<Peer>().cloned() else {
                return Ok(Status::internal("a connection of another kind than accept() gives").into_http());
            };
            let on_connection = peer.line.begin_call();
            if let Identity::Nameless(why) = peer.identity() {
                return Ok(nameless_status(why).into_http());
            }
            let path = request.uri().path();
            let method = Method::from_standard_path(path).unwrap_or_else(|| (admission.method)(path));
            let stream = match reserve_stream_places(&admission, method, &peer) {
                Ok(places) => places,
                Err(refused) => return Ok(refused.into_http()),
            };
            let (request, held) = match admission.admit_request(method, &peer, request).await {
                Ok(admitted) => admitted,
                Err(refused) => return Ok(refused.into_http()),
            };
            let held = Arc::new(held);
            let answer = CALL.scope(held.clone(), ready.call(request)).await?;
            let answer = match method {
                Method::Tail | Method::Stream => answer,
                Method::Ordinary | Method::Large | Method::First => {
                    admission.send(method, &peer, held, encode_answer(answer).await)
                }
            };
            // The body holds a stream's places until it is dropped.
            Ok(answer.map(|body| {
                Body::new(body.map_err(move |error| {
                    let _ = (&stream, &on_connection);
                    error
                }))
            }))
        })
    }
}

/// The places of a stream: one of the server's, and one of its caller's.
fn reserve_stream_places(
    admission: &AdmissionState,
    method: Method,
    peer: &Peer,
) -> Result<Option<(Permit, Permit)>, Status> {
    if method != Method::Stream {
        return Ok(None);
    }
    let places = admission.streams.try_acquire(&peer.caller).zip(peer.reserve_stream());
    places.map(Some).ok_or_else(|| Status::resource_exhausted("too many long answers at a time"))
}

fn nameless_status(why: &str) -> Status {
    Status::permission_denied(format!(
        "this client's certificate has no DNS or URI name to identify it ({why}): issue one with such a subject alternative name"
    ))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, mpsc};
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use http_body_util::Full;
    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
    use tonic::server::NamedService;

    use super::*;
    use crate::transport::{Listen, MAX_MESSAGE, accept_tcp, accept_unix, run_blocking};

    /// What the service has done so far.
    #[derive(Default)]
    struct Done {
        begun: AtomicUsize,
        answered: AtomicUsize,
        /// Calls that have a thread or wait for one, or had one.
        queued: AtomicUsize,
        /// Calls wait for messages on this.
        release: Mutex<Option<mpsc::Receiver<()>>>,
    }

    /// Works until released (`/t.T/Work`), or answers with a MiB (`Big`) or with more than allowed (`Long`).
    #[derive(Clone)]
    struct Test(Arc<Done>);

    /// Does `work` on a thread that may block, and counts the call as soon as it has the thread or waits for it.
    async fn work_on_thread(done: &Done, work: impl FnOnce() + Send + 'static) {
        let mut working = std::pin::pin!(run_blocking(work));
        let first = std::future::poll_fn(|cx| Poll::Ready(working.as_mut().poll(cx))).await;
        done.queued.fetch_add(1, Ordering::SeqCst);
        let ended = match first {
            Poll::Ready(ended) => ended,
            Poll::Pending => working.await,
        };
        ended.unwrap();
    }

    impl NamedService for Test {
        const NAME: &'static str = "t.T";
    }

    impl Service<Request<Body>> for Test {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let done = self.0.clone();
            Box::pin(async move {
                let bytes = match request.uri().path() {
                    "/t.T/Work" => {
                        let worked = done.clone();
                        let work = move || {
                            worked.begun.fetch_add(1, Ordering::SeqCst);
                            if let Some(release) = &*worked.release.lock().unwrap() {
                                let _ = release.recv();
                            }
                        };
                        work_on_thread(&done, work).await;
                        1
                    }
                    "/t.T/Brief" => {
                        work_on_thread(&done, || ()).await;
                        1
                    }
                    "/t.T/Tail" => {
                        done.begun.fetch_add(1, Ordering::SeqCst);
                        request.into_body().collect().await.map_or(0, |_| 1)
                    }
                    "/t.T/Big" | "/t.T/FirstBig" => 1 << 20,
                    "/t.T/Long" => LONGEST_ANSWER + 1,
                    _ => 1,
                };
                done.answered.fetch_add(1, Ordering::SeqCst);
                Ok(Response::new(Body::new(Full::new(Bytes::from(vec![7; bytes])))))
            })
        }
    }

    fn method(path: &str) -> Method {
        match path {
            "/t.T/First" | "/t.T/FirstBig" => Method::First,
            "/t.T/Tail" => Method::Tail,
            _ => Method::Ordinary,
        }
    }

    async fn serving(limits: ServerLimits, done: &Arc<Done>) -> (SocketAddr, Arc<ConnectionCounters>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counters = Arc::new(ConnectionCounters::default());
        let incoming = accept_tcp(listener, Listen { limits, tls: None }, counters.clone());
        let server =
            crate::transport::build_server(limits, method, counters.clone()).add_service(Test(done.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
        (address, counters)
    }

    /// Connects, with a window of `window` bytes for each stream.
    async fn connect(at: SocketAddr, window: u32) -> h2::client::SendRequest<Bytes> {
        connect_from(1, at, window).await
    }

    /// As [`connect`], from the address 127.0.0.`last`.
    async fn connect_from(last: u8, at: SocketAddr, window: u32) -> h2::client::SendRequest<Bytes> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        speak(socket.connect(at).await.unwrap(), window).await
    }

    async fn speak(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        window: u32,
    ) -> h2::client::SendRequest<Bytes> {
        let mut client = h2::client::Builder::new();
        let (sender, connection) = client.initial_window_size(window).handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Begins a call, and optionally sends its message.
    async fn begin(
        client: &mut h2::client::SendRequest<Bytes>,
        path: &str,
        whole: bool,
    ) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        std::future::poll_fn(|cx| client.poll_ready(cx)).await.unwrap();
        let request = Request::post(format!("http://t{path}")).body(()).unwrap();
        let (answer, mut body) = client.send_request(request, false).unwrap();
        if whole {
            body.send_data(Bytes::from_static(&[0; PREFIX]), true).unwrap();
        }
        (answer, body)
    }
    const PREFIX: usize = 5;

    /// The number of bytes in the answer to a call.
    async fn ask(client: &mut h2::client::SendRequest<Bytes>, path: &str) -> Result<usize, h2::Error> {
        let mut body = begin(client, path, true).await.0.await?.into_body();
        let mut bytes = 0;
        while let Some(data) = body.data().await {
            let data = data?;
            bytes += data.len();
            body.flow_control().release_capacity(data.len())?;
        }
        Ok(bytes)
    }

    async fn until(what: &str, is: impl Fn() -> bool) {
        for _ in 0..3000 {
            if is() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what}: not in 30 s");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn work_of_cancelled_calls_is_dropped_or_holds_their_places() {
        let (release, released) = mpsc::channel();
        let done = Arc::new(Done { release: Mutex::new(Some(released)), ..Done::default() });
        let limits = ServerLimits { threads: 1, ..crate::transport::testing::test_limits() };
        let (at, _) = serving(limits, &done).await;
        let mut client = connect(at, 1 << 16).await;
        let mut calls = Vec::new();
        for _ in 0..limits.calls_per_caller {
            calls.push(begin(&mut client, "/t.T/Work", true).await);
        }
        until("work begins", || done.begun.load(Ordering::SeqCst) == 1).await;
        for _ in 0..50 {
            for (_, mut body) in calls.drain(..) {
                body.send_reset(h2::Reason::CANCEL);
            }
            for _ in 0..limits.calls_per_caller {
                calls.push(begin(&mut client, "/t.T/Work", true).await);
            }
            // Methods that must not wait do not.
            assert_eq!(ask(&mut client, "/t.T/First").await.unwrap(), 1);
        }
        assert_eq!(done.begun.load(Ordering::SeqCst), 1, "of 400, one has a thread");
        for (_, mut body) in calls.drain(..) {
            body.send_reset(h2::Reason::CANCEL);
        }
        drop(release);
        assert_eq!(ask(&mut client, "/t.T/Work").await.unwrap(), 1);
        assert!(done.begun.load(Ordering::SeqCst) <= 2 + limits.calls_per_caller);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_thread_works_for_who_has_fewest() {
        let (release, released) = mpsc::channel();
        let done = Arc::new(Done { release: Mutex::new(Some(released)), ..Done::default() });
        let limits = ServerLimits { threads: 2, ..crate::transport::testing::test_limits() };
        let (at, _) = serving(limits, &done).await;
        let (mut busy, mut newcomer) = (connect_from(2, at, 1 << 16).await, connect(at, 1 << 16).await);
        let mut calls = Vec::new();
        for _ in 0..4 {
            calls.push(begin(&mut busy, "/t.T/Work", true).await);
        }
        until("work begins", || done.begun.load(Ordering::SeqCst) == 2).await;
        let mut asked = tokio::spawn(async move { ask(&mut newcomer, "/t.T/Brief").await });
        until("all others wait for a thread", || done.queued.load(Ordering::SeqCst) == 5).await;
        let early = tokio::time::timeout(Duration::from_secs(1), &mut asked).await;
        release.send(()).unwrap();
        let answered = tokio::time::timeout(Duration::from_secs(60), asked).await;
        // Dropping the runtime waits for running work.
        drop(release);
        assert!(early.is_err(), "{early:?}");
        assert_eq!(answered.expect("the next thread").unwrap().unwrap(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_that_nobody_reads_hold_their_places_and_end_with_their_connection() {
        // Answers of which nothing may be sent, and answers that are partly sent, the rest waiting as bytes.
        for window in [0, 1] {
            unread_answers_hold_their_places(window).await;
        }
        tokio::join!(
            unread_answers_end_with_their_connection(0),
            unread_answers_end_with_their_connection(1)
        );
    }

    /// Begins calls with long answers, as many as one connection may have.
    async fn begin_all(
        client: &mut h2::client::SendRequest<Bytes>,
        limits: &ServerLimits,
    ) -> Vec<(h2::client::ResponseFuture, h2::SendStream<Bytes>)> {
        let mut calls = Vec::new();
        for _ in 0..limits.calls_per_caller + limits.streams_per_caller {
            calls.push(begin(client, "/t.T/Big", true).await);
        }
        calls
    }

    async fn unread_answers_hold_their_places(window: u32) {
        let done = Arc::<Done>::default();
        // Longer than the test runs.
        let limits =
            ServerLimits { call: Duration::from_secs(600), ..crate::transport::testing::test_limits() };
        let (at, _) = serving(limits, &done).await;
        let mut reads = connect(at, 1 << 16).await;
        assert_eq!(ask(&mut reads, "/t.T/Big").await.unwrap(), 1 << 20);
        assert!(ask(&mut reads, "/t.T/Long").await.is_err());
        let before = done.answered.load(Ordering::SeqCst);
        let mut client = connect(at, window).await;
        let _unread = begin_all(&mut client, &limits).await;
        until("answers are there", || {
            done.answered.load(Ordering::SeqCst) == before + limits.calls_per_caller
        })
        .await;
        assert_eq!(ask(&mut reads, "/t.T/First").await.unwrap(), 1);
        assert_eq!(done.answered.load(Ordering::SeqCst), before + limits.calls_per_caller + 1);
    }

    async fn unread_answers_end_with_their_connection(window: u32) {
        let done = Arc::<Done>::default();
        let limits =
            ServerLimits { call: Duration::from_secs(15), ..crate::transport::testing::test_limits() };
        let (at, counters) = serving(limits, &done).await;
        let mut client = connect(at, window).await;
        let _unread = begin_all(&mut client, &limits).await;
        until("the connection is closed", || counters.unread.load(Ordering::Relaxed) == 1).await;
        assert!(begin_fails(&mut client).await);
        // Its places are free again. This answer is brief, so that it leaves in time on a busy machine, too.
        assert_eq!(ask(&mut connect(at, 1 << 16).await, "/t.T/Brief").await.unwrap(), 1);
    }

    /// Callers that together hold all places by not reading their answers, and a newcomer.
    async fn newcomer_beside_unread(path: &str, callers: u8, calls: usize) {
        let done = Arc::<Done>::default();
        // Longer than the test runs.
        let limits =
            ServerLimits { call: Duration::from_secs(600), ..crate::transport::testing::test_limits() };
        let (at, counters) = serving(limits, &done).await;
        let mut unread = Vec::new();
        for last in 0..callers {
            let mut client = connect_from(2 + last, at, 0).await;
            for _ in 0..limits.calls_per_caller {
                unread.push((begin(&mut client, path, true).await, client.clone()));
            }
        }
        until("all places are taken", || done.answered.load(Ordering::SeqCst) == calls).await;
        let mut newcomer = connect(at, 1 << 16).await;
        let asked = tokio::time::timeout(Duration::from_secs(60), ask(&mut newcomer, path)).await;
        assert_eq!(asked.expect("a place in a minute").unwrap(), 1 << 20);
        assert!(counters.unread.load(Ordering::Relaxed) >= 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_callers_that_read_nothing_keep_no_newcomer_out() {
        newcomer_beside_unread("/t.T/Big", 2, 16).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nor_out_of_the_places_of_sessions() {
        newcomer_beside_unread("/t.T/FirstBig", 8, 32).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_that_nobody_reads_end_a_unix_connection_too() {
        let done = Arc::<Done>::default();
        let limits =
            ServerLimits { call: Duration::from_secs(3), ..crate::transport::testing::test_limits() };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let counters = Arc::new(ConnectionCounters::default());
        let incoming = accept_unix(UnixListener::bind(&path).unwrap(), limits, counters.clone());
        let server =
            crate::transport::build_server(limits, method, counters.clone()).add_service(Test(done.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
        let mut client = speak(UnixStream::connect(&path).await.unwrap(), 1 << 16).await;
        assert_eq!(ask(&mut client, "/t.T/Big").await.unwrap(), 1 << 20);
        let mut client = speak(UnixStream::connect(&path).await.unwrap(), 0).await;
        let _unread = begin(&mut client, "/t.T/Big", true).await;
        until("the connection is closed", || counters.unread.load(Ordering::Relaxed) == 1).await;
        assert!(begin_fails(&mut client).await);
    }

    /// Begins a call with the start of a message of this many bytes.
    async fn announce(
        client: &mut h2::client::SendRequest<Bytes>,
        bytes: usize,
    ) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        let (answer, mut body) = begin(client, "/t.T/Work", false).await;
        let prefix = [&[0][..], &(bytes as u32).to_be_bytes()].concat();
        body.send_data(prefix.into(), false).unwrap();
        (answer, body)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn messages_that_are_not_sent_keep_no_newcomer_out() {
        let done = Arc::<Done>::default();
        let (at, counters) = serving(crate::transport::testing::test_limits(), &done).await;
        let displaced = || counters.calls_displaced.load(Ordering::Relaxed);
        let mut newcomer = connect(at, 1 << 16).await;
        let end = Instant::now() + Duration::from_secs(60);
        let mut held = Vec::new();
        while displaced() == 0 {
            assert!(Instant::now() < end, "a newcomer never needed room");
            // Four callers take all the room.
            held.clear();
            for last in 2..6 {
                let mut client = connect_from(last, at, 1 << 16).await;
                for _ in 0..4 {
                    held.push((announce(&mut client, MAX_MESSAGE).await, client.clone()));
                }
            }
            assert_eq!(ask(&mut newcomer, "/t.T/Work").await.unwrap(), 1, "a short message needs none");
            let (answer, mut body) = announce(&mut newcomer, 8 << 10).await;
            body.send_data(Bytes::from_static(&[7; 8 << 10]), true).unwrap();
            assert_eq!(answer.await.unwrap().headers().get("grpc-status"), None);
        }
        // Only that one call is dropped; its connection stays.
        let end = Instant::now() + Duration::from_secs(60);
        let mut refused = 0;
        // Calls are counted before they are answered.
        while refused < displaced() {
            assert!(Instant::now() < end, "{refused} of {} were answered", displaced());
            let mut still_held = Vec::new();
            for ((mut answer, body), mut client) in held {
                match tokio::time::timeout(Duration::from_millis(1), &mut answer).await {
                    Ok(Ok(answer)) => {
                        assert_eq!(answer.headers()["grpc-status"], "8");
                        assert_eq!(ask(&mut client, "/t.T/First").await.unwrap(), 1);
                        refused += 1;
                    }
                    Ok(Err(_)) => {}
                    Err(_) => still_held.push(((answer, body), client)),
                }
            }
            held = still_held;
        }
        assert_eq!(refused, displaced());
    }

    async fn begin_fails(client: &mut h2::client::SendRequest<Bytes>) -> bool {
        tokio::time::timeout(Duration::from_secs(30), async {
            while std::future::poll_fn(|cx| client.poll_ready(cx)).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .is_ok()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn calls_without_a_message_hold_no_places() {
        // On a busy machine, they may be cut off before others call.
        for _ in 0..5 {
            if others_are_answered_beside_calls_without_a_message().await {
                return;
            }
        }
        panic!("each time, others were answered only after those had been cut off");
    }

    /// Returns whether others were answered before any of these calls was cut off.
    async fn others_are_answered_beside_calls_without_a_message() -> bool {
        let done = Arc::<Done>::default();
        let (at, counters) = serving(crate::transport::testing::test_limits(), &done).await;
        let mut client = connect(at, 1 << 16).await;
        let mut empty = Vec::new();
        for n in 0..15 {
            let path = if n % 3 == 0 { "/t.T/Work" } else { "/t.T/Tail" };
            let (answer, mut body) = begin(&mut client, path, false).await;
            if n % 2 == 0 {
                // The start of a message of 100 bytes.
                body.send_data(Bytes::from_static(&[0, 0, 0, 0, 100, 1, 2]), false).unwrap();
            }
            empty.push((answer, body));
        }
        // All of them have arrived before what follows.
        for _ in 0..10 {
            assert_eq!(ask(&mut client, "/t.T/First").await.unwrap(), 1);
        }
        assert_eq!(ask(&mut client, "/t.T/Work").await.unwrap(), 1);
        let in_time = counters.calls_late.load(Ordering::Relaxed) == 0;
        assert_eq!(done.begun.load(Ordering::SeqCst), 1);
        // This many are allowed, and no more.
        let mut others = Vec::new();
        for _ in 0..10 {
            let mut client = connect(at, 1 << 16).await;
            for _ in 0..15 {
                others.push(begin(&mut client, "/t.T/Work", false).await);
            }
        }
        until("some are refused", || counters.calls_refused.load(Ordering::Relaxed) >= 15).await;
        assert_eq!(ask(&mut client, "/t.T/First").await.unwrap(), 1);
        in_time
    }
}
