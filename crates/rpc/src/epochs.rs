//! Epochs of several collectors, each of which has its own.

use dta_proto::control::{Epoch, EpochState, EpochsResponse};

/// What epochs of several collectors have in common, for answers that come from all of them: from when the last one
/// was opened until writers moved away from the first one. `None` if a collector named none. A single epoch is
/// returned as it is.
pub(crate) fn in_common(epochs: Vec<Option<Epoch>>) -> Option<Epoch> {
    let several = epochs.len() > 1;
    let epochs = epochs.into_iter().collect::<Option<Vec<Epoch>>>()?;
    let both = |a: Epoch, b: Epoch| Epoch {
        opened: a.opened.max(b.opened),
        flipped_from: [a.flipped_from, b.flipped_from].into_iter().filter(|at| *at != 0).min().unwrap_or(0),
        flipped_to: if a.flipped_to.min(b.flipped_to) == 0 { 0 } else { a.flipped_to.max(b.flipped_to) },
        confirmed: a.confirmed && b.confirmed,
        // States are numbered in the order in which an epoch passes through them.
        state: a.state.min(b.state),
        rows: a.rows + b.rows,
        ..Epoch::default()
    };
    let mut common = epochs.into_iter().reduce(both)?;
    if several {
        common.generation = 0;
        common.rows = if common.state() == EpochState::Kept { common.rows } else { 0 };
    }
    Some(common)
}

/// The epochs of several collectors in one list, each with its collector's address.
pub(crate) fn merge_epoch_lists(answers: Vec<(&str, EpochsResponse)>) -> EpochsResponse {
    // Some collector's epochs are unknown before this moment.
    let older = answers.iter().map(|(_, answer)| answer.older).max().unwrap_or(0);
    let of = |(address, answer): (&str, EpochsResponse)| {
        let collector = address.to_owned();
        answer.epochs.into_iter().map(move |epoch| Epoch { collector: collector.clone(), ..epoch })
    };
    let mut epochs: Vec<Epoch> =
        answers.into_iter().flat_map(of).filter(|epoch| epoch.opened >= older).collect();
    epochs.sort_by_key(|epoch| std::cmp::Reverse(epoch.opened));
    EpochsResponse { epochs, older }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(opened: u64, flipped: [u64; 2], state: EpochState) -> Epoch {
        let [flipped_from, flipped_to] = flipped;
        let confirmed = state == EpochState::Kept;
        let (generation, rows) = (opened / 60, if confirmed { 5 } else { 0 });
        Epoch {
            generation,
            opened,
            flipped_from,
            flipped_to,
            confirmed,
            state: state.into(),
            rows,
            ..Epoch::default()
        }
    }

    #[test]
    fn epochs_of_several_collectors_have_a_span_in_common() {
        use EpochState::{Closed, Kept, Open};
        let (a, b) = (epoch(60, [120, 122], Kept), epoch(61, [119, 121], Kept));
        assert_eq!(in_common(vec![Some(a.clone())]), Some(a.clone()));
        let both = Epoch { generation: 0, rows: 10, ..epoch(61, [119, 122], Kept) };
        assert_eq!(in_common(vec![Some(a.clone()), Some(b.clone())]), Some(both));
        // One of them is not known to be over.
        let common = in_common(vec![Some(a.clone()), Some(epoch(61, [119, 0], Closed))]).unwrap();
        assert_eq!(common, Epoch { generation: 0, ..epoch(61, [119, 0], Closed) });
        let common = in_common(vec![Some(epoch(61, [0, 0], Open)), Some(a.clone())]).unwrap();
        assert_eq!((common.state(), common.flipped_from, common.rows), (Open, 120, 0));
        assert_eq!(in_common(vec![Some(a), None]), None);
        assert_eq!(in_common(vec![]), None);
    }

    #[test]
    fn lists_go_back_as_far_as_all_of_them_do() {
        let list = |opened: &[u64], older| {
            let epochs =
                opened.iter().map(|opened| epoch(*opened, [opened + 60, opened + 60], EpochState::Kept));
            EpochsResponse { epochs: epochs.collect(), older }
        };
        let listed = |answer: &EpochsResponse| {
            answer.epochs.iter().map(|epoch| (epoch.opened, epoch.collector.clone())).collect::<Vec<_>>()
        };
        let both =
            merge_epoch_lists(vec![("a:1", list(&[181, 121], 121)), ("b:1", list(&[180, 120, 60], 60))]);
        assert_eq!(listed(&both), [(181, "a:1".into()), (180, "b:1".into()), (121, "a:1".into())]);
        // What was left out comes in the next answer.
        let rest = merge_epoch_lists(vec![("a:1", list(&[61], 0)), ("b:1", list(&[120, 60], 0))]);
        assert_eq!((both.older, rest.older), (121, 0));
        assert_eq!(listed(&rest), [(120, "b:1".into()), (61, "a:1".into()), (60, "b:1".into())]);
    }
}
