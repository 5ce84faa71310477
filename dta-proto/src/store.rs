//! The description of a store.
//!
//! The same description serves configuration (serde), sessions (`dta_proto::control`) and region headers.
//! Sizes are powers of two, so that a slot is `hash & (slots - 1)` and an address in a region is
//! `base | offset`.

use serde::{Deserialize, Serialize};

use crate::key::{KEY_LEN, Key};
use crate::layout;
use crate::name;
use crate::wire::dta::{DtaBody, DtaReport, MAX_VALUE_LEN, Primitive};

/// Most copies (N) a store can have.
pub const MAX_REDUNDANCY: u8 = 4;
/// Most slots a store can have: hashes have 32 bits.
pub const MAX_SLOTS: u64 = 1 << 32;

/// A store: its id in reports, its name for people, and its layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSpec {
    /// Id in version-1 reports.
    pub id: u16,
    /// Name in configuration, queries and logs: 1 to 63 of `a-z A-Z 0-9 - _`.
    pub name: String,
    /// Layout.
    #[serde(flatten)]
    pub kind: StoreKind,
}

/// The layout of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum StoreKind {
    /// Hash table of the last value per key, in `redundancy` copies.
    KeyWrite {
        /// Slots, a power of two.
        slots: u64,
        /// Value bytes: 4, 12, 28 or 60.
        value_len: u8,
        /// Copies N, 1 to [`MAX_REDUNDANCY`].
        redundancy: u8,
        /// Whether slots hold their keys; if so, values have 12 bytes.
        #[serde(default, skip_serializing_if = "SlotKeys::are_hashed")]
        keys: SlotKeys,
    },
    /// Hash table of paths, one row per key, in `redundancy` copies.
    Postcarding {
        /// Slots, a power of two.
        slots: u64,
        /// Hops per row: 6 (32-byte rows) or 14 (64-byte rows).
        hops: u8,
        /// Copies N, 1 to [`MAX_REDUNDANCY`].
        redundancy: u8,
    },
    /// Lists, each a ring of batches.
    Append {
        /// Lists, a power of two.
        lists: u32,
        /// Batches in each ring, a power of two.
        ring: u64,
        /// Bytes per batch: a power of two from 16 to 4,096.
        batch_len: u16,
        /// Bytes per entry, a multiple of 4, at most 252. A report holds 60: only a translator makes longer entries.
        entry_len: u8,
        /// Whether batches are written with immediate to wake a reader.
        #[serde(default)]
        notify: bool,
    },
    /// Count-min table of 64-bit counters.
    KeyIncrement {
        /// Counters, a power of two.
        slots: u64,
        /// Counters per key (N) at each of its collectors: 1 to [`MAX_REDUNDANCY`], or to 2 with two replicas.
        redundancy: u8,
        /// Collectors that count each key, 1 or 2; if 2, each in one of four
        /// [lanes](layout::key_increment::lane_count).
        #[serde(default = "default_replicas", skip_serializing_if = "is_one_replica")]
        replicas: u8,
    },
    /// Ring of epochs, each a table of columns merged over reporters.
    SketchMerge {
        /// Columns per epoch, a power of two.
        columns: u32,
        /// Cells per column, 1 to 4.
        rows: u8,
        /// Epochs kept, a power of two, at least 2.
        epochs: u32,
        /// How to merge two reporters' cells.
        #[serde(default)]
        merge: Merge,
        /// Reporters that complete a column, 1 to 32.
        expected: u8,
    },
}

/// Calls a macro with each kind, the message that carries it in `dta.v1`, and its fields, which have the same names
/// in configuration and in the message.
macro_rules! kinds {
    ($with:ident) => {
        $with! {
            KeyWrite in KeyWriteStore { slots, value_len, redundancy, keys }
            Postcarding in PostcardingStore { slots, hops, redundancy }
            Append in AppendStore { lists, ring, batch_len, entry_len, notify }
            KeyIncrement in KeyIncrementStore { slots, redundancy, replicas }
            SketchMerge in SketchMergeStore { columns, rows, epochs, merge, expected }
        }
    };
}
#[cfg(feature = "control")]
pub(crate) use kinds;

macro_rules! fields_of_kinds {
    ($($kind:ident in $message:ident { $($field:ident),* })*) => {
        impl StoreKind {
            /// The primitive that writes stores of this kind.
            pub fn primitive(&self) -> Primitive {
                match self {
                    $(StoreKind::$kind { .. } => Primitive::$kind,)*
                }
            }

            /// Its fields under their configuration names. `true` is 1, and words count from 0.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                match *self {
                    $(StoreKind::$kind { $($field),* } => vec![$((stringify!($field), $field.into())),*],)*
                }
            }
        }
    };
}

kinds!(fields_of_kinds);

impl StoreKind {
    /// Its slots and the copies of each key, to modify; `None` if its elements are not slots.
    pub fn slots_mut(&mut self) -> Option<(&mut u64, &mut u8)> {
        match self {
            StoreKind::KeyWrite { slots, redundancy, .. }
            | StoreKind::Postcarding { slots, redundancy, .. }
            | StoreKind::KeyIncrement { slots, redundancy, .. } => Some((slots, redundancy)),
            StoreKind::Append { .. } | StoreKind::SketchMerge { .. } => None,
        }
    }

    /// Its layout in words, for people: `16 lists of 4096 batches of 64 B, entries of 16 B`.
    pub fn describe_layout(&self) -> String {
        match self {
            StoreKind::KeyWrite { value_len, keys, .. } => {
                let keys = if keys.are_hashed() { "" } else { ", each with its key" };
                format!("{value_len}-byte values{keys}")
            }
            StoreKind::Postcarding { hops, .. } => format!("{hops} hops"),
            StoreKind::Append { lists, ring, batch_len, entry_len, .. } => {
                format!("{lists} lists of {ring} batches of {batch_len} B, entries of {entry_len} B")
            }
            StoreKind::KeyIncrement { replicas: 1, .. } => "64-bit counters".to_owned(),
            StoreKind::KeyIncrement { replicas, .. } => format!("64-bit counters at {replicas} collectors"),
            StoreKind::SketchMerge { columns, rows, epochs, .. } => {
                format!("{epochs} epochs of {columns} columns of {rows} rows")
            }
        }
    }
}

fn default_replicas() -> u8 {
    1
}

fn is_one_replica(n: &u8) -> bool {
    *n == 1
}

/// Whether the slots of a key-write store hold their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotKeys {
    /// They do not: the key determines which slots are its own, and is covered by the checksum.
    #[default]
    Hashed,
    /// The key stands before the value.
    Inline,
}

impl SlotKeys {
    /// Whether slots hold no keys.
    pub fn are_hashed(&self) -> bool {
        *self == SlotKeys::Hashed
    }

    /// Bytes of a slot that hold its key.
    pub fn inline_key_len(self) -> u8 {
        if self.are_hashed() { 0 } else { KEY_LEN as u8 }
    }
}

impl From<SlotKeys> for u64 {
    fn from(keys: SlotKeys) -> u64 {
        keys as u64
    }
}

/// How to merge two reporters' cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Merge {
    /// Saturating addition.
    #[default]
    Sum,
    /// Maximum.
    Max,
    /// Bitwise or.
    Or,
}

impl From<Merge> for u64 {
    fn from(merge: Merge) -> u64 {
        merge as u64
    }
}

/// Why a store description cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("store `{store}`: {field} is {value}, but must be {must}")]
pub struct SpecError {
    /// Name of the store.
    pub store: String,
    /// The invalid field, by its configuration name.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// Allowed values.
    pub must: &'static str,
}

/// Finds the store that a user means by `text`: the one with this name or, failing that, this id. `spec` gets
/// the description from an item of `stores`.
pub fn find_store<T>(
    stores: impl Iterator<Item = T> + Clone,
    spec: impl Fn(&T) -> &StoreSpec,
    text: &str,
) -> Option<T> {
    let of_name = stores.clone().find(|store| spec(store).name == text);
    of_name.or_else(|| {
        let id: u16 = text.parse().ok()?;
        let mut stores = stores;
        stores.find(|store| spec(store).id == id)
    })
}

impl StoreSpec {
    /// Checks every field; the error names the first invalid one.
    pub fn validate(&self) -> Result<(), SpecError> {
        let fail =
            |field, value: String, must| Err(SpecError { store: self.name.clone(), field, value, must });
        if !name::is_valid_name(&self.name) {
            return fail("name", format!("{:?}", self.name), name::PLAIN);
        }
        let pow2 = |field, n: u64, most: u64| match n.is_power_of_two() && n <= most {
            true => Ok(()),
            false => fail(
                field,
                n.to_string(),
                "a power of two within the store's limits (2^32 slots, 2^16 lists, 2^30 batches, 2^31 columns, 2^16 epochs)",
            ),
        };
        let copies = |n: u8| match (1..=MAX_REDUNDANCY).contains(&n) {
            true => Ok(()),
            false => fail("redundancy", n.to_string(), "1 to 4"),
        };
        match self.kind {
            StoreKind::KeyWrite { slots, value_len, redundancy, keys } => {
                pow2("slots", slots, MAX_SLOTS)?;
                copies(redundancy)?;
                if !keys.are_hashed() && value_len != 12 {
                    return fail("value_len", value_len.to_string(), "12 where keys are inline");
                }
                if !matches!(value_len, 4 | 12 | 28 | 60) {
                    return fail("value_len", value_len.to_string(), "4, 12, 28 or 60");
                }
            }
            StoreKind::Postcarding { slots, hops, redundancy } => {
                pow2("slots", slots, MAX_SLOTS)?;
                copies(redundancy)?;
                if !matches!(hops, 6 | 14) {
                    return fail("hops", hops.to_string(), "6 or 14");
                }
            }
            StoreKind::Append { lists, ring, batch_len, entry_len, .. } => {
                pow2("lists", u64::from(lists), 1 << 16)?;
                // A reader tells a batch one turn later from an older one by half the sequence space.
                pow2("ring", ring, 1 << 30)?;
                if !batch_len.is_power_of_two() || !(16..=layout::append::MAX_BATCH_LEN).contains(&batch_len)
                {
                    return fail("batch_len", batch_len.to_string(), "a power of two from 16 to 4096");
                }
                if entry_len == 0 || entry_len % 4 != 0 || u16::from(entry_len) > batch_len - 8 {
                    return fail(
                        "entry_len",
                        entry_len.to_string(),
                        "a multiple of 4, at most 252, and at most batch_len - 8",
                    );
                }
            }
            StoreKind::KeyIncrement { slots, redundancy, replicas } => {
                pow2("slots", slots, MAX_SLOTS)?;
                copies(redundancy)?;
                if !(1..=2).contains(&replicas) || redundancy > self.max_redundancy() {
                    return fail("replicas", replicas.to_string(), "1, or 2 where redundancy is 1 or 2");
                }
            }
            StoreKind::SketchMerge { columns, rows, epochs, expected, .. } => {
                pow2("columns", u64::from(columns), 1 << 31)?;
                pow2("epochs", u64::from(epochs), 1 << 16)?;
                if epochs < 2 {
                    return fail("epochs", epochs.to_string(), "at least 2");
                }
                if !(1..=4).contains(&rows) {
                    return fail("rows", rows.to_string(), "1 to 4");
                }
                if !(1..=32).contains(&expected) {
                    return fail("expected", expected.to_string(), "1 to 32");
                }
            }
        }
        Ok(())
    }

    /// Length of one element: slot, row, batch, counter or column.
    pub fn element_len(&self) -> u64 {
        match self.kind {
            StoreKind::KeyWrite { value_len, keys, .. } => u64::from(keys.inline_key_len() + value_len) + 4,
            StoreKind::Postcarding { hops, .. } => layout::postcarding::row_length(hops),
            StoreKind::Append { batch_len, .. } => u64::from(batch_len),
            StoreKind::KeyIncrement { .. } => layout::key_increment::COUNTER_LEN,
            StoreKind::SketchMerge { rows, .. } => layout::sketch_merge::column_len(rows),
        }
    }

    /// Number of elements: slots, batches of all lists, counters, or columns of all epochs.
    pub fn element_count(&self) -> u64 {
        match self.kind {
            StoreKind::KeyWrite { slots, .. }
            | StoreKind::Postcarding { slots, .. }
            | StoreKind::KeyIncrement { slots, .. } => slots,
            StoreKind::Append { lists, ring, .. } => u64::from(lists) * ring,
            StoreKind::SketchMerge { columns, epochs, .. } => u64::from(columns) * u64::from(epochs),
        }
    }

    /// Size of the store's region: a power of two.
    pub fn region_len(&self) -> u64 {
        self.element_len() * self.element_count()
    }

    /// Copies (N) per report; `None` if the kind has no copies.
    pub fn redundancy(&self) -> Option<u8> {
        match self.kind {
            StoreKind::KeyWrite { redundancy, .. }
            | StoreKind::Postcarding { redundancy, .. }
            | StoreKind::KeyIncrement { redundancy, .. } => Some(redundancy),
            StoreKind::Append { .. } | StoreKind::SketchMerge { .. } => None,
        }
    }

    /// The most copies that it could have with its number of replicas.
    pub fn max_redundancy(&self) -> u8 {
        match self.kind {
            StoreKind::KeyIncrement { replicas: 2.., .. } => layout::key_increment::MAX_REDUNDANCY_IN_LANES,
            _ => MAX_REDUNDANCY,
        }
    }

    /// Slots of each key over all lanes; `None` if the kind has no copies.
    pub fn slots_per_key(&self) -> Option<u8> {
        match self.kind {
            StoreKind::KeyIncrement { redundancy, replicas, .. } => {
                Some(redundancy * layout::key_increment::lane_count(replicas) as u8)
            }
            _ => self.redundancy(),
        }
    }

    /// The most reports whose data one element holds: the hops of a row, the entries of a batch, the
    /// reporters of a column; 1 where each report has an element of its own, or adds to one.
    pub fn reports_per_element(&self) -> u8 {
        match self.kind {
            StoreKind::Postcarding { hops, .. } => hops,
            StoreKind::Append { batch_len, entry_len, .. } => {
                layout::append::entries_per_batch(batch_len, entry_len)
            }
            StoreKind::SketchMerge { expected, .. } => expected,
            StoreKind::KeyWrite { .. } | StoreKind::KeyIncrement { .. } => 1,
        }
    }

    /// Bytes of its longest version-1 report. Entries too long for a report count as the longest that fits.
    ///
    /// # Panics
    /// If the store is not [valid](StoreSpec::validate).
    pub fn report_len(&self) -> usize {
        let (key, value) = (Key([0; KEY_LEN]), [0; MAX_VALUE_LEN]);
        let body = match self.kind {
            StoreKind::KeyWrite { value_len, .. } => {
                DtaBody::KeyWrite { redundancy: 0, key, value: &value[..value_len.into()] }
            }
            StoreKind::Postcarding { .. } => DtaBody::Postcard { key, hop: 0, path_length: 0, value: 0 },
            StoreKind::Append { entry_len, .. } => {
                DtaBody::Append { list: 0, value: &value[..MAX_VALUE_LEN.min(entry_len.into())] }
            }
            StoreKind::KeyIncrement { .. } => DtaBody::KeyIncrement { redundancy: 0, key, delta: 0 },
            StoreKind::SketchMerge { rows, .. } => {
                DtaBody::SketchMerge { epoch: 0, column: 0, cells: &value[..4 * usize::from(rows)] }
            }
        };
        DtaReport::new(self.id, body).buffer_len()
    }

    /// The primitive's name.
    pub fn primitive(&self) -> &'static str {
        self.kind.primitive().canonical_name()
    }

    /// Whether only one translator at a time may write it: its elements hold state known only to the writer.
    pub fn single_writer(&self) -> bool {
        self.kind.primitive().description().single_writer
    }
}
