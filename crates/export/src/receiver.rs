//! Receivers of a spool's records, and how much of a record they take.

use std::time::Duration;

/// The outcome of sending a record, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Done,
    /// It will never take this many of the points, but has the others.
    Rejected {
        /// 0 if only parts of points are rejected, such as spans of a trace.
        points: u64,
        reason: String,
    },
    Later {
        reason: String,
        /// How long it asks to be left alone.
        after: Option<Duration>,
    },
}

impl WriteOutcome {
    /// To be retried when it suits the sender.
    pub(crate) fn retry_later(reason: impl Into<String>) -> WriteOutcome {
        WriteOutcome::Later { reason: reason.into(), after: None }
    }
}

/// A database or collector of telemetry. Its calls may block.
pub(crate) trait RecordReceiver: Send {
    fn write_record(&self, record: &[u8], points: u64) -> WriteOutcome;
}

/// Items of a rejected part that are tried alone before the part is halved.
const ALONE: usize = 32;

/// Writes items with `write`, whose error says why it refuses all of them. Refused items are halved until the bad ones are alone, so that no others
/// are lost with them. If [`ALONE`] items spread over a part are each refused alone, too, the part is given up: to establish that nothing in it is
/// good would take two requests per item.
pub(crate) fn write_halving<T>(
    items: &[T],
    points: &impl Fn(&[T]) -> u64,
    write: &mut impl FnMut(&[T]) -> Result<WriteOutcome, String>,
) -> WriteOutcome {
    let reason = match write(items) {
        Ok(written) => return written,
        Err(reason) => reason,
    };
    if items.len() < 2 {
        return WriteOutcome::Rejected { points: points(items), reason };
    }
    if items.len() > 2 * ALONE {
        match is_any_taken(items, write) {
            Ok(true) => {}
            Ok(false) => return WriteOutcome::Rejected { points: points(items), reason },
            Err(later) => return later,
        }
    }
    let (first, second) = items.split_at(items.len() / 2);
    let (mut rejected, mut is_refused) = (0, false);
    for half in [first, second] {
        match write_halving(half, points, write) {
            WriteOutcome::Done => {}
            WriteOutcome::Rejected { points, .. } => (rejected, is_refused) = (rejected + points, true),
            later @ WriteOutcome::Later { .. } => return later,
        }
    }
    if is_refused { WriteOutcome::Rejected { points: rejected, reason } } else { WriteOutcome::Done }
}

/// Whether one of [`ALONE`] items, spread unevenly because each third or fifth may be bad, is accepted; or that this is unknown for now.
fn is_any_taken<T>(
    items: &[T],
    write: &mut impl FnMut(&[T]) -> Result<WriteOutcome, String>,
) -> Result<bool, WriteOutcome> {
    for n in 0..ALONE {
        // Multiples of the golden ratio, within the n-th part.
        let within = (n * 40_503 + 20_000) % 65_536;
        let at = items.len() * (n * 65_536 + within) / (ALONE * 65_536);
        match write(&items[at..=at]) {
            Ok(WriteOutcome::Done) => return Ok(true),
            Ok(WriteOutcome::Rejected { .. }) | Err(_) => {}
            Ok(later @ WriteOutcome::Later { .. }) => return Err(later),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The outcome, the accepted items, and the number of writes.
    fn halved(count: u64, is_refused: impl Fn(&[u64]) -> bool) -> (WriteOutcome, BTreeSet<u64>, usize) {
        let (mut taken, mut calls) = (BTreeSet::new(), 0);
        let items: Vec<u64> = (0..count).collect();
        let written = write_halving(&items, &|part| part.len() as u64, &mut |part| {
            calls += 1;
            if is_refused(part) {
                return Err("no".to_owned());
            }
            taken.extend(part);
            Ok(WriteOutcome::Done)
        });
        (written, taken, calls)
    }

    fn rejected(points: u64) -> WriteOutcome {
        WriteOutcome::Rejected { points, reason: "no".into() }
    }

    #[test]
    fn what_is_refused_whole_is_halved_until_the_bad_items_are_alone() {
        // Too large (413): everything arrives, in parts.
        let (written, taken, _) = halved(100, |part| part.len() > 20);
        assert_eq!((written, taken.len()), (WriteOutcome::Done, 100));
        // Items that cannot be parsed (400): only they are lost.
        let (written, taken, calls) = halved(100, |part| part.iter().any(|item| [7, 99].contains(item)));
        assert_eq!((written, taken.len()), (rejected(2), 98));
        assert!(calls < 40, "{calls}");
        // The number of dropped points is trusted; and a server that is down ends it.
        let one = |items: &[u8]| items.len() as u64;
        assert_eq!(write_halving(&[0; 100], &one, &mut |_| Ok(rejected(3))), rejected(3));
        let mut calls = 0;
        let written = write_halving(&[0; 100], &one, &mut |_| {
            calls += 1;
            if calls == 3 { Ok(WriteOutcome::retry_later("away")) } else { Err("no".into()) }
        });
        assert_eq!((written, calls), (WriteOutcome::retry_later("away"), 3));
        // Items may have several points each.
        let two = |items: &[u8]| 2 * items.len() as u64;
        let write =
            &mut |part: &[u8]| if part.contains(&3) { Err("no".into()) } else { Ok(WriteOutcome::Done) };
        assert_eq!(write_halving(&[3, 1, 1, 3], &two, write), rejected(4));
        // Or none: the outcome still says that something was rejected.
        let none = |_: &[u8]| 0;
        assert_eq!(write_halving(&[3, 1, 1, 3], &none, write), rejected(0));
        assert_eq!(write_halving(&[1, 1], &none, write), WriteOutcome::Done);
    }

    #[test]
    fn what_is_refused_point_by_point_is_not_tried_to_the_last() {
        let (written, taken, calls) = halved(5000, |_| true);
        assert_eq!((written, taken.len()), (rejected(5000), 0));
        assert!(calls < 50, "{calls}");
        // The whole first half is bad: the other half arrives.
        let (written, taken, calls) = halved(5000, |part| part.iter().any(|item| *item < 2500));
        assert_eq!((written, taken.len()), (rejected(2500), 2500));
        assert!(calls < 700, "{calls}");
        // One item in five is good.
        let (written, taken, _) = halved(5000, |part| part.iter().any(|item| item % 5 != 3));
        assert_eq!((written, taken.len()), (rejected(4000), 1000));
    }
}
