//! The primitives, and what the rest of the system needs to know about each: one row per primitive.

use crate::queue_pair::Purpose;

/// What a report addresses in its store, which also decides how a store is divided among the threads of a translator
/// and among collectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// A key. Collectors can share a store by buckets of keys.
    Key,
    /// A list by its number. Collectors can share a store by lists.
    List,
    /// A column of an epoch. One collector holds the whole store.
    Column,
}

/// What the end of an epoch does to a store with epochs, and what goes into the history (docs/history.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochEnd {
    /// The store gets new, empty memory. Everything that the old memory held is kept.
    Replaces,
    /// The memory stays. What it holds at that moment is kept.
    Reads,
    /// The memory stays. Reporters number epochs themselves, and each epoch is kept once it is closed.
    Closes,
    /// The memory stays. What arrived during the epoch is kept.
    Collects,
}

/// What each collector has of a key that several are to hold (docs/scale.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// There is one collector for each key, list or sketch.
    None,
    /// Some of the key's copies: a store says `spread_copies`.
    Copies,
    /// Everything about the key: a store says `replicas`.
    Whole,
    /// Its own counts: a store says `replicas`, which is part of its layout. A key's count is combined from all
    /// collectors, and what one has counted stays there when the key moves.
    Counts,
}

/// Everything to know about a primitive.
#[derive(Debug)]
pub struct Description {
    /// Its name, as in configuration, counters and tables.
    pub name: &'static str,
    /// What its reports address in their store.
    pub addressing: Addressing,
    /// The queue pair that its operations travel on.
    pub purpose: Purpose,
    /// Whether only one translator at a time may write its stores, whose elements hold state that only it knows.
    pub single_writer: bool,
    /// What each of several collectors has of a key.
    pub replicas: Replicas,
    /// Whether version 0 has reports of it.
    pub in_version0: bool,
    /// The kind of its queries in the names of a collector's counters; `None` if it is not queried by key.
    pub query: Option<&'static str>,
    /// What the end of an epoch does to its stores.
    pub epoch_end: EpochEnd,
}

/// Declares [`Primitive`] with its rows, in the order of the tables for people.
macro_rules! primitives {
    ($($(#[$doc:meta])* $primitive:ident = $opcode:literal: $description:expr;)*) => {
        /// A primitive, by its opcode.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[repr(u8)]
        pub enum Primitive {
            $($(#[$doc])* $primitive = $opcode,)*
        }

        impl Primitive {
            /// All primitives, in the order of the tables for people.
            pub const IN_TABLES: [Primitive; [$($opcode),*].len()] = [$(Primitive::$primitive),*];

            /// The primitive with this opcode.
            pub const fn from_opcode(opcode: u8) -> Option<Primitive> {
                match opcode {
                    $($opcode => Some(Primitive::$primitive),)*
                    _ => None,
                }
            }

            /// Everything to know about it.
            pub const fn description(self) -> &'static Description {
                const ROWS: &[Description; Primitive::ALL.len()] = &[$($description),*];
                // From opcode order to row.
                const ORDER: [usize; Primitive::ALL.len()] = {
                    let mut order = [0; Primitive::ALL.len()];
                    let mut row = 0;
                    while row < order.len() {
                        order[Primitive::IN_TABLES[row].index()] = row;
                        row += 1;
                    }
                    order
                };
                &ROWS[ORDER[self.index()]]
            }
        }
    };
}

primitives! {
    /// The last value of a key.
    KeyWrite = 1: Description {
        name: "key-write",
        addressing: Addressing::Key,
        purpose: Purpose::Write,
        single_writer: false,
        replicas: Replicas::Copies,
        in_version0: true,
        query: Some("key-write"),
        epoch_end: EpochEnd::Replaces,
    };
    /// One hop of a path.
    Postcarding = 4: Description {
        name: "postcarding",
        addressing: Addressing::Key,
        purpose: Purpose::Write,
        single_writer: true,
        replicas: Replicas::Whole,
        in_version0: true,
        query: Some("path"),
        epoch_end: EpochEnd::Replaces,
    };
    /// An entry at the end of a list.
    Append = 2: Description {
        name: "append",
        addressing: Addressing::List,
        purpose: Purpose::Write,
        single_writer: true,
        replicas: Replicas::None,
        in_version0: true,
        query: None,
        epoch_end: EpochEnd::Collects,
    };
    /// Addition to the counters of a key.
    KeyIncrement = 3: Description {
        name: "key-increment",
        addressing: Addressing::Key,
        purpose: Purpose::Atomic,
        single_writer: false,
        replicas: Replicas::Counts,
        in_version0: true,
        query: Some("counter"),
        epoch_end: EpochEnd::Reads,
    };
    /// One column of a sketch, to be merged with those of other reporters.
    SketchMerge = 5: Description {
        name: "sketch-merge",
        addressing: Addressing::Column,
        purpose: Purpose::Write,
        single_writer: true,
        replicas: Replicas::None,
        in_version0: false,
        query: Some("sketch"),
        epoch_end: EpochEnd::Closes,
    };
}

impl Primitive {
    /// All primitives, in the order of their opcodes, which count from 1 without a gap.
    pub const ALL: [Primitive; Primitive::IN_TABLES.len()] = {
        let mut all = Primitive::IN_TABLES;
        let mut index = 0;
        while index < all.len() {
            all[index] = match Primitive::from_opcode(index as u8 + 1) {
                Some(primitive) => primitive,
                None => panic!("opcodes count from 1"),
            };
            index += 1;
        }
        all
    };

    /// Byte 0 of its reports.
    pub const fn opcode(self) -> u8 {
        self as u8
    }

    /// Its place in [`Primitive::ALL`].
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// Its name, as in configuration, counters and tables.
    pub const fn canonical_name(self) -> &'static str {
        self.description().name
    }

    /// What its reports address in their store.
    pub const fn addressing(self) -> Addressing {
        self.description().addressing
    }

    /// The queue pair that its operations travel on.
    pub const fn queue_pair_purpose(self) -> Purpose {
        self.description().purpose
    }

    /// What the end of an epoch does to its stores.
    pub const fn epoch_end(self) -> EpochEnd {
        self.description().epoch_end
    }

    /// What each of several collectors has of a key.
    pub const fn replicas(self) -> Replicas {
        self.description().replicas
    }

    /// Whether version 0 has reports of it.
    pub const fn in_version0(self) -> bool {
        self.description().in_version0
    }
}

impl core::fmt::Display for Primitive {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.canonical_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_their_primitives() {
        for (index, primitive) in Primitive::ALL.into_iter().enumerate() {
            assert_eq!(primitive.index(), index);
            assert_eq!(Primitive::from_opcode(primitive.opcode()), Some(primitive));
            // The name is the one that configuration spells.
            assert_eq!(serde_json::to_value(primitive).unwrap(), primitive.canonical_name());
            assert!(Primitive::IN_TABLES.contains(&primitive));
        }
        assert_eq!(Primitive::from_opcode(0), None);
        assert_eq!(Primitive::from_opcode(Primitive::ALL.len() as u8 + 1), None);
        assert_eq!(
            Primitive::ALL
                .map(Primitive::queue_pair_purpose)
                .iter()
                .filter(|p| **p == Purpose::Atomic)
                .count(),
            1
        );
    }
}
