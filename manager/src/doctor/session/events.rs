//! Do the rings of INT events reach back far enough?

use super::Evidence;
use crate::doctor::Finding;

pub(super) fn check_event_rings(e: &Evidence) -> Vec<Finding> {
    let short = e.rings.iter().filter(|ring| ring.is_short());
    short
        .map(|ring| {
            let (found, advice) = ring.describe_with_advice();
            Finding::new_note("rings of events", found, advice)
        })
        .collect()
}
