//! Positions of the two ends of a ring: arithmetic only.
//!
//! A ring has a power of two of places. Each side counts its entries since the ring was created, modulo 2^32,
//! and an entry's place is its number modulo the number of places. So a full ring and an empty one differ,
//! and wrapping at 0 is harmless.

/// The end that writes entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Producer {
    places: u32,
    next: u32,
    /// Entries that the other end had read at the last query.
    read: u32,
}

impl Producer {
    /// An end at entry `start` of a ring with `places` places, a power of two.
    pub(crate) fn new(places: u32, start: u32) -> Self {
        assert!(places.is_power_of_two(), "a ring of {places} places");
        Self { places, next: start, read: start }
    }

    /// The place of the next entry, which then counts as written; `None` if the ring is full. `read` returns
    /// the other end's position, and is called only if the ring seems full.
    #[inline]
    pub(crate) fn take(&mut self, read: impl FnOnce() -> u32) -> Option<usize> {
        if self.next.wrapping_sub(self.read) >= self.places {
            self.read = read();
            if self.next.wrapping_sub(self.read) >= self.places {
                return None;
            }
        }
        let place = self.next & (self.places - 1);
        self.next = self.next.wrapping_add(1);
        Some(place as usize)
    }

    /// Entries written, to publish to the other end.
    #[inline]
    pub(crate) fn written_count(&self) -> u32 {
        self.next
    }

    /// The places of the last `count` entries written, in order.
    pub(crate) fn last_places(&self, count: u32) -> impl Iterator<Item = usize> + use<> {
        let places = self.places;
        let from = self.next.wrapping_sub(count.min(places));
        (0..count.min(places)).map(move |index| (from.wrapping_add(index) & (places - 1)) as usize)
    }
}

/// The end that reads entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Consumer {
    places: u32,
    next: u32,
    /// Entries that the other end had written at the last query.
    written: u32,
}

impl Consumer {
    /// An end at entry `start` of a ring with `places` places, a power of two.
    pub(crate) fn new(places: u32, start: u32) -> Self {
        assert!(places.is_power_of_two(), "a ring of {places} places");
        Self { places, next: start, written: start }
    }

    /// The place of the next entry, which then counts as read; `None` if the ring is empty. `written` returns
    /// the other end's position, and is called only if the ring seems empty.
    #[inline]
    pub(crate) fn take(&mut self, written: impl FnOnce() -> u32) -> Option<usize> {
        if self.next == self.written {
            self.written = written();
            if self.next == self.written {
                return None;
            }
        }
        let place = self.next & (self.places - 1);
        self.next = self.next.wrapping_add(1);
        Some(place as usize)
    }

    /// Entries read, to publish to the other end.
    #[inline]
    pub(crate) fn read(&self) -> u32 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// The writer writes up to this many entries, and publishes.
        Write(u8),
        /// The reader reads up to this many entries, and publishes.
        Read(u8),
        /// The writer looks at up to this many unread entries.
        Last(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..40u8).prop_map(Step::Write),
            4 => (0..40u8).prop_map(Step::Read),
            1 => (0..40u8).prop_map(Step::Last),
        ]
    }

    proptest! {
        /// Against a simple queue, starting just before the counts wrap.
        #[test]
        fn a_ring_is_a_queue(
            order in 0..6u32,
            before in 0..100u32,
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let places = 1 << order;
            let start = 0u32.wrapping_sub(before);
            let (mut writer, mut reader) = (Producer::new(places, start), Consumer::new(places, start));
            // What each end has published, like the words in shared memory.
            let (mut written, mut read) = (start, start);
            let mut ring = vec![0u32; places as usize];
            let mut queue = VecDeque::new();
            let mut value = 0;
            for step in steps {
                match step {
                    Step::Write(count) => {
                        for _ in 0..count {
                            let place = writer.take(|| read);
                            prop_assert_eq!(place.is_some(), queue.len() < places as usize);
                            let Some(place) = place else { break };
                            value += 1;
                            ring[place] = value;
                            queue.push_back(value);
                        }
                        written = writer.written_count();
                    }
                    Step::Read(count) => {
                        for _ in 0..count {
                            let place = reader.take(|| written);
                            prop_assert_eq!(place.map(|place| ring[place]), queue.pop_front());
                        }
                        read = reader.read();
                    }
                    Step::Last(count) => {
                        let count = queue.len().min(count.into());
                        let last: Vec<u32> = writer.last_places(count as u32).map(|place| ring[place]).collect();
                        let expected: Vec<u32> = queue.iter().skip(queue.len() - count).copied().collect();
                        prop_assert_eq!(last, expected);
                    }
                }
                prop_assert_eq!(written.wrapping_sub(read) as usize, queue.len());
            }
        }

        /// The other end's word is shared memory: whatever its value, a place is one of the ring's.
        #[test]
        fn no_word_of_the_other_end_leads_out_of_the_ring(
            order in 0..12u32,
            start: u32,
            words in prop::collection::vec(any::<u32>(), 1..50),
        ) {
            let places = 1u32 << order;
            let (mut writer, mut reader) = (Producer::new(places, start), Consumer::new(places, start));
            for word in words {
                for place in writer.take(|| word).into_iter().chain(reader.take(|| word)) {
                    prop_assert!(place < places as usize);
                }
                prop_assert!(writer.last_places(word).all(|place| place < places as usize));
            }
        }
    }
}
