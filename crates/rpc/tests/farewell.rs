//! Calls whose connection ends: which are made again, and which may have been processed already.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dta_proto::control::{EndSessionRequest, OpenSessionRequest, RenewSessionRequest};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientError, ClientOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a made-up collector does about a call.
#[derive(Clone, Copy, Debug)]
enum Reaction {
    /// An empty message.
    Answer,
    /// GOAWAY with the last stream that it processed and an error code, and the end of the connection.
    GoAway {
        last: u32,
        code: u32,
    },
    /// RST_STREAM with an error code.
    Reset {
        code: u32,
    },
    /// The end of the connection without a word.
    Close,
    Silence,
}

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;

/// A frame of HTTP/2 (RFC 9113 section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A field that no table has (RFC 7541 section 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// Serves one connection: `reaction` knows what to do about the next call.
async fn serve(mut stream: TcpStream, reaction: impl Fn() -> Reaction) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 24]).await?;
    stream.write_all(&frame(4, 0, 0, &[])).await?;
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).await?;
        let [a, b, c, kind, _, rest @ ..] = header;
        let id = u32::from_be_bytes(rest);
        stream.read_exact(&mut vec![0; u32::from_be_bytes([0, a, b, c]) as usize]).await?;
        // HEADERS
        if kind != 1 {
            continue;
        }
        match reaction() {
            Reaction::Answer => {
                let ok = [&[0x88], &field("content-type", "application/grpc")[..]].concat();
                let answer = [
                    frame(1, 4, id, &ok),
                    frame(0, 0, id, &[0; 5]),
                    frame(1, 5, id, &field("grpc-status", "0")),
                ];
                stream.write_all(&answer.concat()).await?;
            }
            Reaction::GoAway { last, code } => {
                let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
                stream.write_all(&frame(7, 0, 0, &payload)).await?;
                stream.shutdown().await?;
            }
            Reaction::Reset { code } => stream.write_all(&frame(3, 0, id, &code.to_be_bytes())).await?,
            Reaction::Close => stream.shutdown().await?,
            Reaction::Silence => {}
        }
    }
}

/// A collector that reacts to its first calls like this and answers the others, and how many came.
async fn collector(first: &[Reaction]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let calls = Arc::<AtomicUsize>::default();
    let (counted, first) = (calls.clone(), first.to_vec());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (counted, first) = (counted.clone(), first.clone());
            let next =
                move || *first.get(counted.fetch_add(1, Ordering::SeqCst)).unwrap_or(&Reaction::Answer);
            tokio::spawn(serve(stream, next));
        }
    });
    (address, calls)
}

/// Makes the `n`-th of some calls; `None` after the last one.
async fn make(mut client: RemoteCollector, n: usize) -> Option<Result<(), ClientError>> {
    let name = || "t".to_owned();
    let made = match n {
        0 => client.open_session(OpenSessionRequest { name: name(), ..Default::default() }).await.map(|_| ()),
        1 => client
            .preview_session(OpenSessionRequest { name: name(), ..Default::default() })
            .await
            .map(|_| ()),
        2 => {
            client.renew_session(RenewSessionRequest { name: name(), ..Default::default() }).await.map(|_| ())
        }
        3 => client.give_up_session(EndSessionRequest { name: name(), ..Default::default() }).await,
        4 => client.end_session("t").await,
        5 => client.fetch_stores().await.map(|_| ()),
        _ => return None,
    };
    Some(made)
}

/// Makes each call of a collector that reacts like this to the first ones: whether it succeeded, and how often it
/// came.
async fn make_each(first: &[Reaction], patience: Duration) -> Vec<(bool, usize)> {
    let mut all = Vec::new();
    loop {
        let (address, calls) = collector(first).await;
        let options = ClientOptions { call: Some(patience), ..ClientOptions::without_tls(address) };
        let client = RemoteCollector::connect_lazy(&options).unwrap();
        let Some(made) = make(client, all.len()).await else { return all };
        all.push((made.is_ok(), calls.load(Ordering::SeqCst)));
    }
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn calls_that_a_collector_did_not_process_when_it_said_farewell_are_made_again() {
    let farewell = Reaction::GoAway { last: 0, code: NO_ERROR };
    assert_eq!(make_each(&[], LONG).await, [(true, 1); 6]);
    assert_eq!(make_each(&[farewell], LONG).await, [(true, 2); 6]);
    assert_eq!(make_each(&[farewell; 2], LONG).await, [(true, 3); 6]);
    assert_eq!(make_each(&[farewell; 3], LONG).await, [(false, 3); 6]);
}

#[tokio::test]
async fn calls_that_a_collector_may_have_processed_are_not_made_again() {
    for ending in [
        Reaction::GoAway { last: 1, code: NO_ERROR },
        Reaction::GoAway { last: 0, code: INTERNAL_ERROR },
        Reaction::Reset { code: CANCEL },
        Reaction::Reset { code: NO_ERROR },
        Reaction::Close,
    ] {
        assert_eq!(make_each(&[ending], LONG).await, [(false, 1); 6], "{ending:?}");
    }
}

#[tokio::test]
async fn a_call_whose_time_is_over_is_not_made_again() {
    let made = make_each(&[Reaction::Silence; 3], Duration::from_secs(1)).await;
    // On a busy machine it may be over before the call has come.
    assert!(made.iter().all(|(is_ok, calls)| !is_ok && *calls <= 1), "{made:?}");
}
