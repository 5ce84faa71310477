//! What RC has to do about repeats, gaps, refusals and the end of the PSNs, by hand: on the queue pairs of a session as it
//! was opened, and on those that came after a kill of the collector and after one of them broke. Frames that were on their
//! way to the ones before do nothing, and are counted.

use std::net::SocketAddrV4;

use super::loopback::own_address;
use super::*;
use dta_proto::wire::frame::Received;
use dta_proto::wire::roce::{AtomicEth, ImmDt, NakCode, Syndrome};

/// PSNs that the cases use up, of writes and of atomics.
const WRITES: u32 = 4;
const ATOMICS: u32 = 1 + KEPT;
/// The number of atomics whose answers are kept.
const KEPT: u32 = 16;
const PSNS: u32 = 1 << 24;

/// One of the session's queue pairs at the collector, and what its frames are made of.
#[derive(Clone, Copy, Debug)]
struct Pair {
    qpn: u32,
    psn: u32,
    iova: u64,
    rkey: u32,
}

/// What an answer says.
#[derive(Debug, PartialEq)]
struct Said {
    from: u32,
    psn: u32,
    syndrome: Syndrome,
    before: Option<u64>,
}

/// What a frame asks for.
#[derive(Clone, Copy)]
enum Does {
    Write([u8; 8]),
    WriteWithImmediate([u8; 8]),
    Add(u64),
}

struct World {
    client: RemoteCollector,
    link: UdpLink,
    roce: SocketAddrV4,
    /// Answers that were not looked at yet.
    answers: std::collections::VecDeque<Said>,
    generation: u64,
    write: Pair,
    atomic: Pair,
    written: [u8; 8],
    added: u64,
    /// A place of its own for each life.
    at: u64,
}

/// The session's queue pairs at the translator.
const OWN: [u32; 2] = [50, 51];
/// Distance between the last PSN of a queue pair and the first of its replacement.
const STRIDE: u32 = 1 << 16;

/// A collector whose NIC is at this address, and where that listens.
fn start(memory: &Path, nic: SocketAddrV4) -> (Running, SocketAddrV4) {
    let (host, port) = (nic.ip().to_string(), nic.port().to_string());
    let flags = ["--transport", "rc", "--soft-address", &host];
    let (child, ready) = serve_with(memory, &port, &flags, Stdio::null());
    let address = |name: &str| ready[name].as_str().unwrap().to_owned();
    (Running { child, address: address("listen") }, address("roce").parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_case_is_as_before_on_a_queue_pair_that_was_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    // The second life of each goes beyond the last PSN.
    let start_psn = [WRITES, ATOMICS].map(|used| PSNS - 2 - STRIDE - used);
    let (collector, roce) = start(&dir.path().join("m"), SocketAddrV4::new(own_address(), 0));
    let mut world = World::open(&collector.address, roce, start_psn).await;
    for life in 0..3 {
        let start = [world.write.psn, world.atomic.psn];
        world.cases().await;
        assert_eq!((world.write.psn < start[0], world.atomic.psn < start[1]), (life == 1, life == 1));
        world.refused(world.guessed()).await;
        let before = world.renew().await;
        for (now, before) in [(world.write, before[0]), (world.atomic, before[1])] {
            assert!(now.qpn != before.qpn && now.rkey == before.rkey);
            assert_eq!(now.psn, add(before.psn, STRIDE));
        }
        world.stragglers(before).await;
        // An old one that reaches the new queue pair is a repeat to it.
        let late = Pair { psn: before[0].psn, ..world.write };
        world.send(late, 0, Does::Write([0xee; 8]));
        let last = world.write;
        world.expect(OWN[0], last, -1, Syndrome::ACK, None);
        assert_eq!(world.memory().await, (world.written, world.added));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_case_is_as_before_after_a_kill_of_the_collector() {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("m");
    let (mut collector, roce) = start(&memory, SocketAddrV4::new(own_address(), 0));
    let mut world = World::open(&collector.address, roce, [PSNS - 2; 2]).await;
    world.cases().await;
    for _ in 0..2 {
        collector.child.kill().unwrap();
        collector.child.wait().unwrap();
        (collector, _) = start(&memory, roce);
        world.client =
            RemoteCollector::connect(&ClientOptions::without_tls(&collector.address)).await.unwrap();
        let before = world.renew().await;
        for (now, before) in [(world.write, before[0]), (world.atomic, before[1])] {
            assert!(now.qpn != before.qpn && now.rkey != before.rkey && now.iova == before.iova);
        }
        world.cases().await;
        world.stragglers(before).await;
        // An old key is invalid.
        world.refused(before.map(|pair| pair.rkey)).await;
    }
}

impl World {
    async fn open(address: &str, roce: SocketAddrV4, start_psn: [u32; 2]) -> World {
        let mut client = RemoteCollector::connect(&ClientOptions::without_tls(address)).await.unwrap();
        let link = UdpLink::open(&UdpConfig::for_roce_frames("127.0.0.2:0".parse().unwrap())).unwrap();
        let pair = |purpose: control::Purpose, n: usize| control::RequesterQueuePair {
            purpose: purpose.into(),
            qpn: OWN[n],
            start_psn: start_psn[n],
        };
        let port = link.local_addr().port().into();
        let open = control::OpenSessionRequest {
            name: "leaf1".into(),
            translator: Some(control::Endpoint { ip: "127.0.0.2".into(), port, ..Default::default() }),
            queue_pairs: vec![pair(control::Purpose::Write, 0), pair(control::Purpose::Atomic, 1)],
            stores: vec!["flows".into(), "bytes".into()],
            ..Default::default()
        };
        let session = client.open_session(open).await.unwrap();
        let [write, atomic] = pairs(&session);
        World {
            client,
            link,
            roce,
            answers: Default::default(),
            generation: session.generation,
            write,
            atomic,
            written: [0; 8],
            added: 0,
            at: 0,
        }
    }

    /// Renews the session, which has other queue pairs since; returns the old ones.
    async fn renew(&mut self) -> [Pair; 2] {
        let renew = control::RenewSessionRequest {
            name: "leaf1".into(),
            generation: self.generation,
            ..Default::default()
        };
        let session = self.client.renew_session(renew).await.unwrap();
        assert!(session.generation > self.generation);
        let before = [self.write, self.atomic];
        self.generation = session.generation;
        [self.write, self.atomic] = pairs(&session);
        (self.written, self.added, self.at) = ([0; 8], 0, self.at + 8);
        before
    }

    /// Sends a frame, by which it asks for an acknowledgement.
    fn send(&mut self, pair: Pair, ahead: i64, does: Does) {
        let from = self.link.local_addr();
        let psn = (i64::from(pair.psn) + ahead).rem_euclid(PSNS.into()) as u32;
        let (opcode, payload) = match &does {
            Does::Write(bytes) => (Opcode::RcWriteOnly, &bytes[..]),
            Does::WriteWithImmediate(bytes) => (Opcode::RcWriteOnlyImm, &bytes[..]),
            Does::Add(_) => (Opcode::RcFetchAdd, &[][..]),
        };
        let (va, rkey, shape) = (pair.iova + self.at, pair.rkey, opcode.header_layout());
        let add = if let Does::Add(add) = does { add } else { 0 };
        let repr = RoceRepr {
            bth: Bth::new(opcode, pair.qpn, Psn::new(psn), true),
            reth: shape.reth.then_some(Reth { va, rkey, length: 8 }),
            atomic: shape.atomic.then_some(AtomicEth { va, rkey, swap_add: add, compare: 0 }),
            aeth: None,
            atomic_ack: None,
            imm: shape.imm.then_some(ImmDt(7)),
            payload,
        };
        let route = FrameRoute {
            src_port: from.port(),
            dst_port: self.roce.port(),
            ..FrameRoute::new(*from.ip(), *self.roce.ip(), pair.qpn)
        };
        let mut packet = [0; 256];
        let len = route.write_frame(&repr, &mut packet).unwrap();
        let mut batch = PacketBatch::default();
        batch.push(&packet[..len], 0).unwrap();
        self.link.send(&mut batch).unwrap();
    }

    /// The next answer. What was not answered is known by the answer to what came after it.
    fn next(&mut self) -> Said {
        let until = Instant::now() + Duration::from_secs(60);
        let mut batch = PacketBatch::default();
        while self.answers.is_empty() {
            assert!(Instant::now() < until, "no answer");
            self.link.recv(&mut batch, Some(Duration::from_millis(100))).unwrap();
            self.answers.extend(batch.iter().map(|answer| {
                let roce = Received::parse_packet(answer).unwrap().roce;
                Said {
                    from: roce.base_header().dest_qp,
                    psn: roce.base_header().psn.get(),
                    syndrome: roce.ack_header().unwrap().expect("an answer").syndrome,
                    before: roce.atomic_ack(),
                }
            }));
        }
        self.answers.pop_front().unwrap()
    }

    #[track_caller]
    fn expect(&mut self, own: u32, pair: Pair, ahead: i64, syndrome: Syndrome, before: Option<u64>) {
        let psn = (i64::from(pair.psn) + ahead).rem_euclid(PSNS.into()) as u32;
        assert_eq!(self.next(), Said { from: own, psn, syndrome, before });
    }

    /// What is in memory where this life writes and adds.
    async fn memory(&mut self) -> ([u8; 8], u64) {
        let read =
            |store: &str, offset| control::ReadMemoryRequest { store: store.into(), offset, length: 8 };
        let (flows, bytes) = (read("flows", self.at), read("bytes", self.at));
        let value = async |request| -> [u8; 8] {
            self.client.read_memory(request).await.unwrap().data.try_into().unwrap()
        };
        (value(flows).await, u64::from_ne_bytes(value(bytes).await))
    }

    async fn counted(&self, names: &[&str]) -> Vec<u64> {
        let nodes = self.client.statistics().await.unwrap();
        let nic = nodes.iter().find(|n| n.node == "nic/soft").unwrap();
        let counted = |name: &&str| nic.counters.iter().find(|c| c.name == *name).map_or(0, |c| c.value);
        names.iter().map(counted).collect()
    }

    /// One case after the other, of writes and of atomics.
    async fn cases(&mut self) {
        const ACK: Syndrome = Syndrome::ACK;
        let [write, atomic] = [OWN[0], OWN[1]];
        let (mut w, mut a) = (self.write, self.atomic);

        // A write is executed and acknowledged; repeated, it is acknowledged.
        self.send(w, 0, Does::Write([1; 8]));
        self.expect(write, w, 0, ACK, None);
        self.send(w, 0, Does::Write([2; 8]));
        self.expect(write, w, 0, ACK, None);
        assert_eq!(self.memory().await, ([1; 8], 0));
        w = next(w);

        // What is ahead is refused once, with the PSN that is missing; then that comes, and what was ahead again.
        self.send(w, 1, Does::Write([3; 8]));
        self.expect(write, w, 0, Syndrome::Nak(NakCode::PsnSequenceError), None);
        self.send(w, 2, Does::Write([4; 8]));
        self.send(w, 0, Does::Write([5; 8]));
        self.expect(write, w, 0, ACK, None);
        assert_eq!(self.memory().await.0, [5; 8]);
        self.send(w, 1, Does::Write([6; 8]));
        self.expect(write, w, 1, ACK, None);
        w = next(next(w));

        // No receive is posted: it is not executed, and its PSN is expected again.
        self.send(w, 0, Does::WriteWithImmediate([7; 8]));
        let Said { from, psn, syndrome, .. } = self.next();
        assert!((from, psn) == (write, w.psn) && matches!(syndrome, Syndrome::RnrNak { .. }), "{syndrome:?}");
        assert_eq!(self.memory().await.0, [6; 8]);
        self.send(w, 0, Does::Write([8; 8]));
        self.expect(write, w, 0, ACK, None);
        self.write = next(w);
        assert_eq!(w.psn, add(self.write.psn, PSNS - 1));

        // An atomic that is repeated is answered as before, and adds nothing, as long as its answer is kept.
        self.send(a, 0, Does::Add(5));
        self.expect(atomic, a, 0, ACK, Some(0));
        let first = a;
        self.send(first, 0, Does::Add(5));
        self.expect(atomic, first, 0, ACK, Some(0));
        for n in 1..=KEPT {
            a = next(a);
            self.send(a, 0, Does::Add(1));
            self.expect(atomic, a, 0, ACK, Some(u64::from(5 + n - 1)));
        }
        self.send(first, 0, Does::Add(5));
        self.send(a, 0, Does::Add(1));
        self.expect(atomic, a, 0, ACK, Some(u64::from(5 + KEPT - 1)));
        self.atomic = next(a);
        (self.written, self.added) = ([8; 8], u64::from(5 + KEPT));
        assert_eq!(self.memory().await, (self.written, self.added));
    }

    /// Frames for old queue pairs, with their keys and PSNs, and with current ones: none is executed or answered.
    async fn stragglers(&mut self, before: [Pair; 2]) {
        let had = self.counted(&["dropped.unknown_queue_pair"]).await[0];
        let psns = [(self.write, before[0]), (self.atomic, before[1])];
        for (now, before) in psns {
            for pair in [before, Pair { qpn: before.qpn, ..now }] {
                for ahead in -2..3 {
                    self.send(pair, ahead, Does::Write([0xee; 8]));
                    self.send(pair, ahead, Does::Add(1000));
                }
            }
        }
        // These come after them: theirs are the only answers.
        let (w, a) = (self.write, self.atomic);
        self.send(w, 0, Does::Write(self.written));
        self.expect(OWN[0], w, 0, Syndrome::ACK, None);
        self.send(a, 0, Does::Add(0));
        self.expect(OWN[1], a, 0, Syndrome::ACK, Some(self.added));
        (self.write, self.atomic) = (next(w), next(a));
        assert_eq!(self.memory().await, (self.written, self.added));
        assert_eq!(self.counted(&["dropped.unknown_queue_pair"]).await[0], had + 40);
    }

    /// A key that is none breaks both queue pairs: from then on, nothing is executed or answered there.
    async fn refused(&mut self, keys: [u32; 2]) {
        let names = ["dropped.rkey", "dropped.queue_pair_error"];
        let had = self.counted(&names).await;
        let (w, a) = (self.write, self.atomic);
        for (own, pair, rkey, does) in
            [(OWN[0], w, keys[0], Does::Write([9; 8])), (OWN[1], a, keys[1], Does::Add(1000))]
        {
            self.send(Pair { rkey, ..pair }, 0, does);
            self.expect(own, pair, 0, Syndrome::Nak(NakCode::RemoteAccessError), None);
            (-2..3).for_each(|ahead| self.send(pair, ahead, does));
        }
        let until = Instant::now() + Duration::from_secs(60);
        while self.counted(&names).await != [had[0] + 2, had[1] + 10] {
            assert!(Instant::now() < until, "{:?}", self.counted(&names).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut batch = PacketBatch::default();
        assert_eq!(self.link.recv(&mut batch, Some(Duration::ZERO)).unwrap(), 0, "they are not answered");
        assert_eq!(self.memory().await, (self.written, self.added));
        let sessions = self.client.fetch_sessions().await.unwrap();
        assert!(sessions.sessions[0].queue_pairs.iter().all(|pair| pair.state == "error"));
    }

    /// Keys that do not exist.
    fn guessed(&self) -> [u32; 2] {
        [self.write.rkey, self.atomic.rkey].map(|rkey| rkey ^ 0x5500_0000)
    }
}

fn add(psn: u32, more: u32) -> u32 {
    (psn + more) % PSNS
}

fn next(pair: Pair) -> Pair {
    Pair { psn: add(pair.psn, 1), ..pair }
}

fn pairs(session: &control::Session) -> [Pair; 2] {
    [0, 1].map(|n| {
        let (pair, region) = (&session.queue_pairs[n], &session.regions[n]);
        Pair { qpn: pair.qpn, psn: pair.expected_psn, iova: region.address, rkey: region.rkey }
    })
}
