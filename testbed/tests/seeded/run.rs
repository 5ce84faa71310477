//! The loop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use dta_testbed::fuzz::Target;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::mutate::mutant;

/// What a run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Inputs tried.
    pub(crate) tried: u64,
    /// Of these, the decoder took.
    pub(crate) taken: u64,
}

/// An input for which the property does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// How many inputs were tried before.
    pub(crate) after: u64,
    /// The input.
    pub(crate) input: Vec<u8>,
}

/// Tries all seeds of a target as they are and then mutations of them until the time is over. The
/// same `seed` gives the same inputs in the same order.
///
/// # Errors
/// The first input at which the property panicked.
pub(crate) fn run(target: &Target, seed: u64, time: Duration) -> Result<Summary, Failure> {
    let start = Instant::now();
    let seeds = (target.seeds)();
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &key);
    let mut summary = Summary { tried: 0, taken: 0 };
    let mutants = std::iter::repeat_with(|| mutant(&mut rng, &seeds));
    for input in seeds.iter().cloned().chain(mutants) {
        // A look at the clock costs more than an input.
        if summary.tried % 256 == 255 && start.elapsed() >= time {
            break;
        }
        match catch_unwind(AssertUnwindSafe(|| (target.check)(&input))) {
            Ok(taken) => summary.taken += u64::from(taken),
            Err(_) => return Err(Failure { after: summary.tried, input }),
        }
        summary.tried += 1;
    }
    Ok(summary)
}
