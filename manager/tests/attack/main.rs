//! Each daemon while somebody attacks its gRPC port: with calls that are cancelled, answers that are not read, and calls
//! whose messages do not come. Others are answered, its memory stays below what `docs/operating.md` says, and SIGTERM
//! ends it. `DTA_ATTACK_SECONDS` makes each attack last so long, and holds the end to the 10 seconds of that page.

#[path = "../common/mod.rs"]
mod common;

mod agent;
mod attacker;
mod collector;
mod flood;
mod translator;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use attacker::{Attack, Call, How};
use common::daemon::Daemon;
use common::int_bed::{IntBed, PATIENCE, Setup};
use prost::Message;
use tonic::transport::{Channel, Endpoint};

const OPERATING: &str = include_str!("../../../docs/operating.md");

/// A request may have this many parts, and a few more.
const MOST_PARTS: usize = (1 << 18) - 8;
/// How often others are answered while an attack lasts, at least. They do not wait for calls that have no message.
fn answers(how: How) -> u32 {
    if how == How::Empty { 40 } else { 8 }
}
/// How often the lease is renewed meanwhile, at least.
const RENEWALS: u64 = 3;
/// How long the end may take, as the documentation says.
const END: Duration = Duration::from_secs(10);

/// How long each attack lasts in the long form.
fn long() -> Option<Duration> {
    let seconds = std::env::var("DTA_ATTACK_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number of seconds")))
}

/// What calls and connections of a daemon may take, in bytes: the documentation's figure.
fn bound(daemon: &str) -> u64 {
    let row =
        OPERATING.lines().find(|line| line.starts_with(&format!("| {daemon} |")) && line.contains("MiB"));
    let last = row.and_then(|row| row.trim_end_matches(" |").rsplit("| ").next());
    let figure = last.and_then(|cell| cell.strip_suffix(" MiB")).expect("a row with a figure");
    figure.replace(',', "").parse::<u64>().unwrap() << 20
}

fn call(path: &'static str, message: &impl Message) -> Call {
    Call { path, message: message.encode_to_vec() }
}

/// A harmless connection, from its own address.
async fn other(at: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{at}")).unwrap().timeout(PATIENCE);
    endpoint.local_address(Some(IpAddr::from([127, 0, 8, 1]))).connect().await.unwrap()
}

/// Attacks `daemon` until others were answered often enough and `done` is so; then ends it, while the attack goes on.
/// `ask` queries as another client does. `beside` is the daemon's memory besides calls, in bytes.
async fn endures(
    daemon: Daemon,
    named: &str,
    beside: u64,
    attack: Attack,
    mut ask: impl AsyncFnMut(u32) -> Result<bool, tonic::Status>,
) {
    let (how, began) = (attack.how, Instant::now());
    let (calls, before) = (attack.calls as u64, daemon.most_memory());
    let at: SocketAddr =
        daemon.said(if named == "translator" { "control" } else { "listen" }).parse().unwrap();
    // A connection of which nothing was heard yet is closed for a new one, where many come.
    ask(0).await.unwrap_or_else(|status| panic!("{named}, before {how:?}: {status}"));
    let under_way = attack.on(at);
    let (mut answered, mut slowest) = (0, Duration::ZERO);
    // A slow machine may take longer in all, but each answer must come in time.
    let mut progress = began;
    loop {
        let asked = Instant::now();
        let done = ask(answered).await.unwrap_or_else(|status| panic!("{named}, {how:?}: {status}"));
        answered += 1;
        slowest = slowest.max(asked.elapsed());
        if answered <= answers(how) {
            progress = Instant::now();
        }
        if done
            && answered >= answers(how)
            && under_way.begun() >= calls
            && began.elapsed() >= long().unwrap_or_default()
        {
            break;
        }
        let late = PATIENCE + long().unwrap_or_default();
        assert!(
            progress.elapsed() < late,
            "{named}, {how:?}: {answered} answers, {} calls",
            under_way.begun()
        );
    }
    let (most, begun, lasted) = (daemon.most_memory(), under_way.begun(), began.elapsed());
    let (status, took) = daemon.terminate(PATIENCE);
    eprintln!(
        "{named}, {how:?}: {begun} calls in {lasted:?}, {answered} answers to others in {slowest:?} at most, {} MiB before and {} MiB at \
         most, {} MiB of them beside calls; ended in {took:?}",
        before >> 20,
        most >> 20,
        beside >> 20
    );
    assert!(status.success(), "{named}, {how:?}: {status}");
    assert!(most - beside < bound(named), "{named}, {how:?}: {most} bytes");
    assert!(long().is_none() || took < END, "{named}, {how:?}: {took:?}");
}

async fn bed() -> IntBed {
    IntBed::start(&Setup { dialects: &["auto"], ..Setup::default() }).await
}
