//! What memory has to hold, from the reports and from which of them came.

use std::collections::{BTreeMap, HashMap};

use dta_proto::key::Key;
use dta_proto::layout::postcarding::PostcardPath;

use crate::reports::{PATH_COPIES, ROWS, Reports, Said, VALUE_COPIES, VALUE_LEN};

/// When each copy of each report came to the NIC last: by reporter, sequence and copy.
#[derive(Default)]
pub(crate) struct Arrivals {
    last: HashMap<(u16, u32, u8), u64>,
    next: u64,
}

impl Arrivals {
    /// A frame came that carries these reports, as this copy.
    pub(crate) fn came(&mut self, reports: &[(u16, u32)], copy: u8) {
        for (reporter, sequence) in reports {
            self.last.insert((*reporter, *sequence, copy), self.next);
        }
        self.next += 1;
    }
}

/// Merged cells of a column, and of how many reporters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Column {
    pub(crate) cells: [u32; ROWS as usize],
    pub(crate) merged: u16,
}

/// What each store holds.
#[derive(Default)]
pub(crate) struct Truth {
    /// The value in each copy of a key.
    pub(crate) values: HashMap<Key, [Option<[u8; VALUE_LEN]>; VALUE_COPIES as usize]>,
    /// The entries of each list of each store, in order.
    pub(crate) entries: BTreeMap<(u16, u32), Vec<Vec<u8>>>,
    pub(crate) sums: HashMap<Key, u64>,
    /// A path, and how many of its copies came.
    pub(crate) paths: HashMap<Key, (PostcardPath, u8)>,
    pub(crate) columns: HashMap<(u32, u32), Column>,
    lost: u64,
}

impl Truth {
    /// Everything came, in the order in which it was reported.
    pub(crate) fn of_all(reports: &Reports) -> Truth {
        Truth::new(reports, |report, _| Some(report as u64))
    }

    /// Of what does not leave twice, this came. Counters are always whole: FETCH_ADDs go over RC.
    pub(crate) fn of_what_came(reports: &Reports, arrivals: &Arrivals) -> Truth {
        Truth::new(reports, |report, copy| {
            let made = &reports.all[report];
            arrivals.last.get(&(made.reporter, made.sequence, copy)).copied()
        })
    }

    /// `when` says of a report, by its place, and of a copy when it came.
    fn new(reports: &Reports, when: impl Fn(usize, u8) -> Option<u64>) -> Truth {
        let mut truth = Truth::default();
        let mut newest: HashMap<(Key, u8), u64> = HashMap::new();
        for (n, made) in reports.all.iter().enumerate() {
            match &made.said {
                Said::Value { key, copies, value } => {
                    let copies = if *copies == 0 { VALUE_COPIES } else { *copies };
                    let mut whole = [0; VALUE_LEN];
                    whole[..value.len()].copy_from_slice(value);
                    let stored = truth.values.entry(*key).or_default();
                    let mut came = false;
                    for copy in 0..copies {
                        let Some(at) = when(n, copy) else { continue };
                        came = true;
                        let last = newest.entry((*key, copy)).or_insert(at);
                        if at >= *last {
                            *last = at;
                            stored[usize::from(copy)] = Some(whole);
                        }
                    }
                    truth.lost += u64::from(!came);
                }
                Said::Entry { store, list, entry, .. } => {
                    let entries = truth.entries.entry((*store, *list)).or_default();
                    match when(n, 0) {
                        Some(_) => entries.push(entry.clone()),
                        None => truth.lost += 1,
                    }
                }
                Said::Count { key, delta } => {
                    let sum = truth.sums.entry(*key).or_default();
                    *sum = sum.wrapping_add(*delta);
                }
                Said::Hop { key, hop, length, value } => {
                    let came = (0..PATH_COPIES).filter(|copy| when(n, *copy).is_some()).count() as u8;
                    let (path, copies) = truth.paths.entry(*key).or_insert((PostcardPath::default(), came));
                    assert_eq!(*copies, came, "the hops of a path leave together");
                    path.length = *length;
                    assert!(path.set(*hop, *value));
                    truth.lost += u64::from(came == 0);
                }
                Said::Column { epoch, column, cells } => {
                    if when(n, 0).is_none() {
                        truth.lost += 1;
                        continue;
                    }
                    let merged = truth.columns.entry((*epoch, *column)).or_default();
                    merged.merged += 1;
                    for (sum, cell) in merged.cells.iter_mut().zip(cells) {
                        *sum = sum.saturating_add(*cell);
                    }
                }
            }
        }
        truth
    }

    /// Reports without any copy that arrived.
    pub(crate) fn lost_reports(&self) -> u64 {
        self.lost
    }
}
