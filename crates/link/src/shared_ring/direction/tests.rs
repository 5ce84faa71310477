use std::sync::atomic::Ordering::SeqCst;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn pair(capacity: usize) -> (Producer, Consumer, Arc<Memory>) {
    let memory = Arc::new(Memory::new_private(CONTROL + capacity));
    let place = Extent { at: 0, capacity };
    (Producer::new(Arc::clone(&memory), place), Consumer::new(Arc::clone(&memory), place), memory)
}

fn taken(consumer: &mut Consumer, slots: usize) -> Vec<Vec<u8>> {
    let mut batch = PacketBatch::with_packet_capacity(slots, FRAME_MAX);
    consumer.take(&mut batch).unwrap();
    batch.iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn frames_come_out_as_they_went_in_around_the_end_of_the_ring() {
    let (mut producer, mut consumer, _) = pair(64);
    for round in 0..200u8 {
        let frames: Vec<Vec<u8>> = (0..3).map(|n| vec![round ^ n; 1 + usize::from(round) % 90]).collect();
        for frame in &frames {
            assert!(producer.push(frame).unwrap());
        }
        assert!(taken(&mut consumer, 8).is_empty(), "not published yet");
        assert!(!producer.publish_frames());
        assert_eq!(taken(&mut consumer, 2), frames[..2]);
        assert_eq!(producer.untaken_frames(), 1);
        assert_eq!(taken(&mut consumer, 8), frames[2..]);
        assert_eq!(producer.untaken_frames(), 0);
    }
}

#[test]
fn a_full_ring_takes_nothing_until_there_is_room_and_says_who_is_to_be_woken() {
    let (mut producer, mut consumer, _) = pair(64);
    let mut count = 0;
    while producer.push(&[7; 24]).unwrap() {
        count += 1;
    }
    assert_eq!(count, 16);
    producer.publish_frames();
    assert!(!producer.wait_for_room().unwrap());
    let mut batch = PacketBatch::new(7);
    assert!(!consumer.take(&mut batch).unwrap().wake, "less than half is free");
    batch.clear();
    assert!(consumer.take(&mut batch).unwrap().wake);
    assert_eq!(batch.len(), 7);
    batch.clear();
    assert!(!consumer.take(&mut batch).unwrap().wake, "once");
    assert!(producer.wait_for_room().unwrap());
    assert!(!consumer.announce_sleep().unwrap());
    assert!(producer.push(&[1]).unwrap());
    assert!(producer.publish_frames(), "it sleeps");
    assert!(producer.push(&[2]).unwrap());
    assert!(!producer.publish_frames(), "it was woken already");
    assert!(consumer.announce_sleep().unwrap(), "there is something");
}

#[test]
fn frames_longer_than_a_slot_are_lost_and_counted_and_those_after_them_come() {
    let (mut producer, mut consumer, _) = pair(1 << 12);
    for len in [10, 1500, 20] {
        assert!(producer.push(&vec![1; len]).unwrap());
    }
    producer.publish_frames();
    let mut batch = PacketBatch::with_packet_capacity(4, 100);
    assert_eq!(consumer.take(&mut batch).unwrap().too_long, 1);
    assert_eq!(batch.iter().map(<[u8]>::len).collect::<Vec<_>>(), [10, 20]);
    assert_eq!(producer.push(&[]), Err(Broken::Length));
    assert_eq!(producer.push(&vec![0; FRAME_MAX + 1]), Err(Broken::Length));
}

#[test]
fn lengths_that_cannot_be_end_the_ring_and_good_frames_before_them_are_kept() {
    let lies = [0, FRAME_MAX as u64 + 1, 1 << 32, u64::MAX, u64::MAX - 7, 25];
    for lie in lies {
        let (mut producer, mut consumer, memory) = pair(4096);
        assert!(producer.push(&[1; 16]).unwrap() && producer.push(&[2; 16]).unwrap());
        producer.publish_frames();
        // The second frame begins at the fourth word.
        memory.as_words()[CONTROL + 3].store(lie, SeqCst);
        let mut batch = PacketBatch::new(8);
        assert_eq!(consumer.take(&mut batch), Err(Broken::Length), "{lie}");
        assert_eq!(batch.len(), 1);
    }
}

#[test]
fn indices_that_cannot_be_end_the_ring() {
    for tail in [65, 1 << 20, u64::MAX, u64::MAX - 63] {
        let (_, mut consumer, memory) = pair(64);
        memory.as_words()[TAIL].store(tail, SeqCst);
        assert_eq!(consumer.take(&mut PacketBatch::new(1)), Err(Broken::Index), "{tail}");
        assert_eq!(consumer.announce_sleep(), Err(Broken::Index));
        assert_eq!(consumer.stop_at_written(), Err(Broken::Index));
    }
    for head in [5, u64::MAX, 1 << 63] {
        let (mut producer, _, memory) = pair(64);
        assert!(producer.push(&[1; 8]).unwrap());
        memory.as_words()[HEAD].store(head, SeqCst);
        assert_eq!(producer.has_frame_room(), Err(Broken::Index), "{head}");
        assert_eq!(producer.wait_for_room(), Err(Broken::Index));
    }
    // The index cannot go back either.
    let (mut producer, mut consumer, memory) = pair(64);
    assert!(producer.push(&[1; 8]).unwrap());
    producer.publish_frames();
    assert_eq!(taken(&mut consumer, 1).len(), 1);
    assert!(producer.has_frame_room().is_ok());
    memory.as_words()[HEAD].store(0, SeqCst);
    assert_eq!(producer.has_frame_room(), Err(Broken::Index));
    // Nor can the consumer take more than there was: what is left is never negative.
    memory.as_words()[TAKEN].store(u64::MAX, SeqCst);
    assert_eq!(producer.untaken_frames(), 0);
}

#[test]
fn a_ring_that_ends_is_read_to_where_it_was_and_no_further() {
    let (mut producer, mut consumer, _) = pair(64);
    assert!(producer.push(&[1; 8]).unwrap() && producer.push(&[2; 8]).unwrap());
    producer.publish_frames();
    consumer.stop_at_written().unwrap();
    assert!(producer.push(&[3; 8]).unwrap());
    producer.publish_frames();
    assert!(!consumer.is_at_end());
    assert_eq!(taken(&mut consumer, 8), [[1; 8], [2; 8]]);
    assert!(consumer.is_at_end());
    assert!(taken(&mut consumer, 8).is_empty());
}

/// What a hostile other end does to memory: writes a value at a word, or an index near the real one.
fn lie() -> impl Strategy<Value = (usize, u64)> {
    let word = prop_oneof![
        Just(TAIL),
        Just(HEAD),
        Just(TAKEN),
        Just(SLEEPS),
        Just(WAITS),
        (CONTROL..CONTROL + 64),
        (0..CONTROL + 64),
    ];
    let value =
        prop_oneof![any::<u64>(), 0..200u64, Just(u64::MAX), (FRAME_MAX as u64 - 2..FRAME_MAX as u64 + 3)];
    (word, value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 20 } else { 2000 }))]

    #[test]
    fn any_frames_in_any_batches_come_through_in_order(
        frames in vec(vec(any::<u8>(), 1..300), 1..60),
        slots in vec(1..9usize, 1..20),
    ) {
        let (mut producer, mut consumer, _) = pair(128);
        let (mut came, mut slots) = (Vec::new(), slots.into_iter().cycle());
        for frame in &frames {
            while !producer.push(frame).unwrap() {
                producer.publish_frames();
                came.extend(taken(&mut consumer, slots.next().unwrap()));
            }
        }
        producer.publish_frames();
        while came.len() < frames.len() {
            came.extend(taken(&mut consumer, slots.next().unwrap()));
        }
        prop_assert_eq!(came, frames);
        prop_assert_eq!(producer.untaken_frames(), 0);
    }

    /// Whatever the other end writes, wherever and whenever: no panic, no frame longer than the limit,
    /// and no more words read in a call than the ring has.
    #[test]
    fn a_hostile_other_end_spoils_nothing_but_the_ring(steps in vec((0..6u8, lie()), 1..80)) {
        let (mut producer, mut consumer, memory) = pair(64);
        let mut batch = PacketBatch::with_packet_capacity(16, 400);
        for (step, (word, value)) in steps {
            match step {
                0 => drop(producer.push(&[5; 40])),
                1 => drop(producer.publish_frames()),
                2 => {
                    batch.clear();
                    let _ = consumer.take(&mut batch);
                    prop_assert!(batch.len() <= 16 && batch.iter().all(|frame| frame.len() <= 400));
                }
                3 => drop((producer.wait_for_room(), consumer.announce_sleep(), producer.untaken_frames())),
                4 => drop(consumer.take_frame()),
                _ => memory.as_words()[word].store(value, SeqCst),
            }
        }
    }
}

#[test]
fn two_threads_pass_frames_and_each_is_whole() {
    const FRAMES: u32 = if cfg!(miri) { 300 } else { 200_000 };
    let (mut producer, mut consumer, _) = pair(1 << 10);
    let sender = std::thread::spawn(move || {
        for number in 0..FRAMES {
            let frame = [number.to_be_bytes(); 12].concat();
            while !producer.push(&frame[..8 + number as usize % 40]).unwrap() {
                producer.publish_frames();
                std::thread::yield_now();
            }
            if number % 7 == 0 {
                producer.publish_frames();
            }
        }
        producer.publish_frames();
    });
    let (mut expected, mut batch) = (0, PacketBatch::new(32));
    while expected < FRAMES {
        batch.clear();
        consumer.take(&mut batch).unwrap();
        for frame in batch.iter() {
            assert_eq!(frame.len(), 8 + expected as usize % 40);
            assert!(frame.chunks_exact(4).all(|part| part == expected.to_be_bytes()), "{expected}");
            expected += 1;
        }
        if batch.is_empty() {
            std::thread::yield_now();
        }
    }
    sender.join().unwrap();
}

/// Another thread scribbles all over the memory while both ends work. Checks that frames stay within the
/// limit, and nothing panics or hangs.
#[test]
fn a_scribbler_at_the_same_time_harms_nobody() {
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    let (mut producer, mut consumer, memory) = pair(64);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (stopped, scribbled) = (Arc::clone(&stop), Arc::clone(&memory));
    let scribbler = std::thread::spawn(move || {
        let mut random = 7u64;
        while !stopped.load(SeqCst) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let word = (random >> 33) as usize % scribbled.as_words().len();
            scribbled.as_words()[word].store(random >> (random >> 58), SeqCst);
        }
    });
    for _ in 0..rounds {
        // An end that noticed an error is replaced.
        let mut batch = PacketBatch::with_packet_capacity(8, 200);
        let sound = producer.push(&[9; 30]).is_ok() && consumer.take(&mut batch).is_ok();
        producer.publish_frames();
        assert!(batch.iter().all(|frame| frame.len() <= batch.packet_capacity()));
        if !sound {
            let place = Extent { at: 0, capacity: 64 };
            producer = Producer::new(Arc::clone(&memory), place);
            consumer = Consumer::new(Arc::clone(&memory), place);
        }
    }
    stop.store(true, SeqCst);
    scribbler.join().unwrap();
}
