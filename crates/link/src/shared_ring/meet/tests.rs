use std::net::Ipv4Addr;

use dta_proto::batch::PacketBatch;

use super::*;
use crate::{HostLink, Link, UdpConfig, UdpLink};

const LOOPBACK: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

fn udp() -> HostLink {
    HostLink::new(UdpLink::open(&UdpConfig::for_roce_frames(LOOPBACK.into())).unwrap())
}

/// A name that no other test uses.
fn name(test: &str) -> String {
    format!("dta-ring-test-{test}-{}-{:?}", std::process::id(), Instant::now())
        .replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

/// The link of a NIC that nobody serves yet, and a requester's link.
struct Pair {
    nic: HostLink,
    requester: HostLink,
    door: Door,
    from: SocketAddrV4,
    to: SocketAddrV4,
    token: [u8; TOKEN],
}

impl Pair {
    fn new(test: &str) -> Pair {
        let (nic, door) = udp().with_door(name(test)).unwrap();
        let requester = udp();
        let (from, to) = (requester.udp_link().local_addr(), nic.udp_link().local_addr());
        Pair { nic, requester, door, from, to, token: [3; TOKEN] }
    }

    fn joined(test: &str) -> Pair {
        let mut pair = Pair::new(test);
        pair.join();
        pair
    }

    fn join(&mut self) {
        let end = self.met();
        self.requester.add(end);
        assert!(self.requester.has_ring(self.to) && self.nic.has_ring(self.from));
    }

    /// The requester's end of a ring that the NIC serves.
    fn met(&mut self) -> End {
        let (end, came) = self.met_while_receiving();
        assert!(came.is_empty(), "{came:?}");
        end
    }

    /// The same, with what reached the NIC meanwhile.
    fn met_while_receiving(&mut self) -> (End, Vec<u32>) {
        let (mut tries, mut came) = (0, Vec::new());
        loop {
            let offer = self.door.offer_ring(self.from, self.token).unwrap();
            let to = self.to;
            let joining = std::thread::spawn(move || join_ring(&offer, to));
            let mut batch = PacketBatch::new(8);
            while !joining.is_finished() {
                self.nic.recv(&mut batch, Some(Duration::from_millis(5))).unwrap();
                came.extend(numbers(&batch));
            }
            match joining.join().unwrap() {
                Ok(end) => return (end, came),
                // On a busy machine, each step may take longer than the timeout.
                Err(error) if tries == 3 => panic!("{error}"),
                Err(_) => tries += 1,
            }
        }
    }

    fn batch(&self, numbers: std::ops::Range<u32>) -> PacketBatch {
        let mut batch = PacketBatch::new(numbers.len());
        for number in numbers {
            batch.push_datagram(self.from, self.to, &number.to_be_bytes(), 0).unwrap();
        }
        batch
    }

    fn answer(&self, number: u32) -> PacketBatch {
        let mut batch = PacketBatch::new(1);
        batch.push_datagram(self.to, self.from, &number.to_be_bytes(), 0).unwrap();
        batch
    }

    /// Everything that reaches the NIC until nothing has come for a while.
    fn arrivals(&mut self) -> Vec<u32> {
        all(&mut self.nic)
    }
}

fn all(link: &mut HostLink) -> Vec<u32> {
    let (mut batch, mut all) = (PacketBatch::new(8), Vec::new());
    while link.recv(&mut batch, Some(Duration::from_millis(50))).unwrap() > 0 {
        all.extend(numbers(&batch));
    }
    all
}

fn numbers(batch: &PacketBatch) -> impl Iterator<Item = u32> {
    let of = |index| u32::from_be_bytes(batch.udp_datagram(index).unwrap().payload().try_into().unwrap());
    (0..batch.len()).map(of)
}

#[test]
fn frames_go_through_the_ring_both_ways_and_are_the_bytes_that_a_socket_gives() {
    let mut pair = Pair::joined("both");
    pair.requester.send(&mut pair.batch(0..100)).unwrap();
    assert_eq!(pair.arrivals(), (0..100).collect::<Vec<_>>());
    pair.nic.send(&mut pair.answer(7)).unwrap();
    assert_eq!(all(&mut pair.requester), [7]);
    let (sent, received) = (pair.requester.link_counters(), pair.nic.link_counters());
    assert_eq!((sent.sent, sent.sent_bytes), (100, 3200));
    assert_eq!((received.received, received.received_bytes, received.sent), (100, 3200, 1));
    let rings = (pair.requester.ring_counters(), pair.nic.ring_counters());
    assert_eq!((rings.0.opened, rings.0.sent, rings.0.received, rings.0.left), (1, 100, 1, 0));
    assert_eq!((rings.1.opened, rings.1.sent, rings.1.received), (1, 1, 100));
    assert_eq!(pair.requester.udp_link().link_counters().sent, 0);
    // A stranger's frames still arrive through the socket, and a frame to a stranger leaves through it.
    let mut stranger = udp();
    let at = stranger.udp_link().local_addr();
    let mut batch = PacketBatch::new(2);
    batch.push_datagram(at, pair.to, &9u32.to_be_bytes(), 0).unwrap();
    stranger.send(&mut batch).unwrap();
    assert_eq!(pair.arrivals(), [9]);
    batch.push_datagram(pair.to, pair.from, &1u32.to_be_bytes(), 0).unwrap();
    batch.push_datagram(pair.to, at, &2u32.to_be_bytes(), 0).unwrap();
    assert_eq!(pair.nic.send(&mut batch).unwrap(), 2);
    assert_eq!((all(&mut stranger), all(&mut pair.requester)), (vec![2], vec![1]));
}

#[test]
fn what_left_by_the_socket_is_not_overtaken_by_the_first_frames_of_the_ring() {
    let mut pair = Pair::new("overtake");
    let end = pair.met();
    // The NIC has the ring, but the requester does not know it yet.
    pair.requester.send(&mut pair.batch(0..20)).unwrap();
    pair.requester.add(end);
    pair.requester.send(&mut pair.batch(20..40)).unwrap();
    assert_eq!(pair.arrivals(), (0..40).collect::<Vec<_>>());
    assert_eq!(pair.nic.ring_counters().received, 20);
}

/// Joins again if the door does not answer in time, as on a busy machine.
fn join_when_door_answers(offer: &JoinOffer, nic: SocketAddrV4) -> Result<End, JoinError> {
    let mut tries = 0;
    loop {
        match join_ring(offer, nic) {
            Err(JoinError::System(_)) if tries < 3 => tries += 1,
            answer => return answer,
        }
    }
}

/// Waits until a thread of this process sleeps in the kernel.
fn wait_until_asleep(thread: rustix::thread::Pid) {
    let file = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    // Twice in a row: it may wait for something else shortly before.
    let (start, mut asleep) = (Instant::now(), 0);
    while asleep < 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not sleep");
        std::thread::sleep(Duration::from_millis(10));
        let stat = std::fs::read_to_string(&file).unwrap();
        // The state follows the name, which may have parentheses of its own.
        asleep = if stat.rsplit_once(") ").unwrap().1.starts_with('S') { asleep + 1 } else { 0 };
    }
}

#[test]
fn a_nic_that_sleeps_is_woken_and_one_that_is_busy_is_not() {
    let pair = Pair::joined("sleep");
    let batch = pair.batch(0..1);
    let Pair { mut nic, mut requester, .. } = pair;
    let (says, said) = channel();
    let sleeper = std::thread::spawn(move || {
        let start = Instant::now();
        says.send(rustix::thread::gettid()).unwrap();
        let came = nic.recv(&mut PacketBatch::new(8), Some(Duration::from_secs(600))).unwrap();
        (came, start.elapsed(), nic)
    });
    wait_until_asleep(said.recv().unwrap());
    requester.send(&mut batch.clone()).unwrap();
    let (came, took, nic) = sleeper.join().unwrap();
    assert!(came == 1 && took < Duration::from_secs(300), "{came} after {took:?}");
    assert_eq!(requester.ring_counters().woken, 1);
    for _ in 0..10 {
        requester.send(&mut batch.clone()).unwrap();
    }
    assert_eq!(requester.ring_counters().woken, 1, "nobody sleeps");
    drop(nic);
}

#[test]
fn a_full_ring_is_waited_for_and_then_each_frame_is_counted_once() {
    let mut pair = Pair::joined("full");
    let mut sent = 0;
    let start = Instant::now();
    while pair.requester.link_counters().unsent_queue_full == 0 {
        sent += 64;
        let numbers = sent - 64..sent;
        pair.requester.send(&mut pair.batch(numbers)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    // The ring stayed full: no more waiting.
    for _ in 0..20 {
        pair.requester.send(&mut pair.batch(0..64)).unwrap();
        sent += 64;
    }
    let counters = pair.requester.link_counters();
    assert_eq!(counters.sent + counters.unsent_queue_full, u64::from(sent));
    assert_eq!(pair.requester.ring_counters().full, 1);
    let came = pair.arrivals();
    assert_eq!(came.len() as u64, counters.sent);
    // With room, frames go again.
    assert_eq!(pair.requester.send(&mut pair.batch(5..6)).unwrap(), 1);
    assert_eq!(pair.arrivals(), [5]);
}

#[test]
fn what_a_requester_that_is_gone_has_sent_comes_before_what_its_successor_sends() {
    let mut pair = Pair::joined("successor");
    pair.requester.send(&mut pair.batch(0..50)).unwrap();
    // Gone like a killed process: its end of the socket closes. The next run uses another port.
    let before = std::mem::replace(&mut pair.requester, udp());
    drop(before);
    (pair.from, pair.token) = (pair.requester.udp_link().local_addr(), [4; TOKEN]);
    let (end, mut came) = pair.met_while_receiving();
    pair.requester.add(end);
    pair.requester.send(&mut pair.batch(50..100)).unwrap();
    came.extend(pair.arrivals());
    assert_eq!(came, (0..100).collect::<Vec<_>>());
    assert_eq!(pair.nic.ring_counters().opened, 2);
}

#[test]
fn a_nic_that_is_gone_leaves_what_it_did_not_take_counted_and_frames_go_by_the_socket() {
    let mut pair = Pair::joined("gone");
    pair.requester.send(&mut pair.batch(0..30)).unwrap();
    let mut batch = PacketBatch::new(8);
    assert_eq!(pair.nic.recv(&mut batch, Some(Duration::ZERO)).unwrap(), 8);
    let (to, from) = (pair.to, pair.from);
    drop((pair.nic, pair.door));
    // Another NIC at the same address, without a ring.
    let mut nic = HostLink::new(UdpLink::open(&UdpConfig::for_roce_frames(to.into())).unwrap());
    let start = Instant::now();
    while pair.requester.has_ring(to) {
        pair.requester.wait_for_input(&[], Some(Duration::from_millis(5))).unwrap();
        pair.requester.recv(&mut batch, Some(Duration::ZERO)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    assert_eq!(pair.requester.take_over().collect::<Vec<_>>(), [(to, Over::Gone)]);
    assert_eq!(pair.requester.ring_counters().left, 22);
    batch.clear();
    batch.push_datagram(from, to, &77u32.to_be_bytes(), 0).unwrap();
    assert_eq!(pair.requester.send(&mut batch).unwrap(), 1);
    assert_eq!(all(&mut nic), [77]);
}

#[test]
fn a_stranger_to_the_door_is_refused_with_the_reason_and_others_are_served() {
    let mut pair = Pair::new("stranger");
    let offer = pair.door.offer_ring(pair.from, [3; TOKEN]).unwrap();
    let wrong = JoinOffer { token: [4; TOKEN], ..offer.clone() };
    let refused = join_when_door_answers(&wrong, pair.to).unwrap_err();
    assert!(refused.to_string().contains("token"), "{refused}");
    let nobody = JoinOffer { name: format!("{}x", offer.name), ..offer };
    assert!(matches!(join_ring(&nobody, pair.to), Err(JoinError::NoDoor(_))));
    // A requester that sends nothing, one that sends nonsense, and one that leaves midway.
    let at = abstract_address(&nobody.name[..nobody.name.len() - 1]).unwrap();
    let mut nonsense = UnixStream::connect_addr(&at).unwrap();
    nonsense.write_all(&[0xff; 64]).unwrap();
    let mut half = UnixStream::connect_addr(&at).unwrap();
    half.write_all(&MAGIC).unwrap();
    drop(half);
    let mute = UnixStream::connect_addr(&at).unwrap();
    pair.join();
    drop((mute, nonsense));
    assert!(!is_trusted(1000, 1001) && is_trusted(0, 1001) && is_trusted(1001, 1001));
    assert!(!is_trusted(1000, 0), "root gives its memory to nobody else");
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let mut pair = Pair::new("mute");
    let offer = pair.door.offer_ring(pair.from, [3; TOKEN]).unwrap();
    let at = abstract_address(&offer.name).unwrap();
    let silent = || -> Vec<UnixStream> { (0..100).map(|_| UnixStream::connect_addr(&at).unwrap()).collect() };
    let _mute = silent();
    pair.join();
    // A requester that identifies itself slowly gets an answer too. If the machine is busy for longer than
    // the door waits, it tries again.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let _mute = silent();
        let mut slow = UnixStream::connect_addr(&at).unwrap();
        slow.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let mut reply = [0; REPLY];
        if slow.write_all(&[MAGIC.as_slice(), &VERSION.to_le_bytes(), &[0; 4 + TOKEN]].concat()).is_ok()
            && slow.read_exact(&mut reply).is_ok()
        {
            // That token is nobody's.
            assert_eq!((&reply[..8], reply[12]), (MAGIC.as_slice(), 2));
            break;
        }
        assert!(Instant::now() < until, "no answer");
    }
}

/// Runs in a separate process, because running out of descriptors would disturb other tests.
#[test]
#[ignore = "takes all descriptors of its process: run alone by the test below"]
fn alone_without_descriptors() {
    let mut pair = Pair::new("descriptors");
    let offer = pair.door.offer_ring(pair.from, [3; TOKEN]).unwrap();
    let at = abstract_address(&offer.name).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(64), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    // Frees one, for this end of a connection.
    taken.pop();
    let knock = UnixStream::connect_addr(&at).unwrap();
    let start = Instant::now();
    let trouble = loop {
        if let Some(trouble) = pair.door.take_trouble() {
            break trouble;
        }
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(trouble.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
    drop((knock, taken));
    pair.join();
}

#[test]
fn a_door_goes_on_after_the_system_had_no_descriptor_for_it() {
    let test = "shared_ring::meet::tests::alone_without_descriptors";
    let alone = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--test-threads=1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&alone.stdout);
    assert!(alone.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn an_end_that_gets_no_sign_of_being_served_is_given_up() {
    let pair = Pair::new("silent");
    let offer = pair.door.offer_ring(pair.from, [3; TOKEN]).unwrap();
    // Nobody receives on the NIC's link.
    assert!(matches!(join_when_door_answers(&offer, pair.to), Err(JoinError::Silent)));
    assert!(!pair.door.has_ring(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1)));
}

#[test]
fn a_ring_whose_other_end_lies_is_given_up_and_the_link_goes_on() {
    let mut pair = Pair::new("liar");
    let mut liar = pair.met();
    let mut batch = PacketBatch::new(8);
    liar.push(&[1; 60]).unwrap();
    liar.announce_excess_frames();
    let start = Instant::now();
    while pair.nic.has_ring(pair.from) {
        pair.nic.recv(&mut batch, Some(Duration::from_millis(5))).unwrap();
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    assert_eq!(pair.nic.ring_counters().broken, 1);
    assert!(matches!(pair.nic.take_over().next(), Some((_, Over::Broken(_)))));
    assert_eq!(liar.read_signals(), Err(Over::Gone));
    assert!(!pair.door.has_ring(pair.from));
    pair.requester.send(&mut pair.batch(3..4)).unwrap();
    assert_eq!(pair.arrivals(), [3]);
}

#[test]
fn frames_by_the_socket_do_not_overtake_those_of_a_ring_that_ended_while_both_live() {
    let mut pair = Pair::new("overtake");
    let mut end = pair.met();
    pair.batch(0..30).iter().for_each(|frame| assert_eq!(end.push(frame).unwrap(), PushOutcome::Yes));
    end.publish_frames();
    drop(end);
    // The requester no longer has a ring.
    assert_eq!(pair.requester.send(&mut pair.batch(30..40)).unwrap(), 10);
    // Forces the turn that reads the socket, whatever is in the rings.
    pair.nic.look_around_next();
    assert_eq!(pair.arrivals(), (0..40).collect::<Vec<_>>());
    assert!(!pair.nic.has_ring(pair.from));
    assert_eq!(pair.nic.link_counters().received, 40);
}
