//! Remembers which of several collectors did not answer lately, so that queries that others can answer do not wait for them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tonic::Status;

use crate::ClientError;

/// How long a collector that did not answer is not asked again if another one has the same data.
pub(crate) const REST: Duration = Duration::from_secs(10);
/// How long to wait for the others once one has answered.
const PATIENCE: Duration = Duration::from_secs(2);

/// The outcome of the last question to each of several collectors.
pub(crate) struct UnreachableMembers(Mutex<Vec<Option<(Instant, Status)>>>);

impl UnreachableMembers {
    /// A number of collectors, all of them reachable.
    pub(crate) fn all_reachable(members: usize) -> UnreachableMembers {
        UnreachableMembers(Mutex::new(vec![None; members]))
    }

    /// Why a collector is not to be asked, if it did not answer within the last [`REST`].
    pub(crate) fn unreachable_reason(&self, member: usize) -> Option<Status> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, why) = all.get(member)?.as_ref()?;
        (since.elapsed() < REST).then(|| why.clone())
    }

    /// Records whether a collector answered.
    pub(crate) fn record_outcome(&self, member: usize, away: Option<Status>) {
        if let Some(place) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(member) {
            *place = away.map(|why| (Instant::now(), why));
        }
    }
}

/// Waits for all answers, in the order asked. Once one has succeeded, the others have [`PATIENCE`] left.
pub(crate) async fn patiently<T>(
    asked: impl IntoIterator<Item = impl Future<Output = Result<T, ClientError>>>,
) -> Vec<Result<T, ClientError>> {
    let numbered = asked.into_iter().enumerate().map(|(n, answer)| async move { (n, answer.await) });
    let mut asked: FuturesUnordered<_> = numbered.collect();
    let late =
        || Status::unavailable(format!("no answer within {} s of another collector's", PATIENCE.as_secs()));
    let mut answers: Vec<Result<T, ClientError>> = (0..asked.len()).map(|_| Err(late().into())).collect();
    let mut until = None;
    loop {
        let next = match until {
            None => asked.next().await,
            Some(until) => tokio::time::timeout_at(until, asked.next()).await.unwrap_or_default(),
        };
        let Some((n, answer)) = next else { return answers };
        if answer.is_ok() {
            until.get_or_insert_with(|| tokio::time::Instant::now() + PATIENCE);
        }
        answers[n] = answer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_silent_is_waited_for_until_another_one_has_answered() {
        let asked = [None, Some(1), None].map(|answer: Option<u8>| async move {
            match answer {
                Some(answer) => Ok(answer),
                None => std::future::pending().await,
            }
        });
        let answers = patiently(asked).await;
        assert_eq!(answers[1].as_ref().unwrap(), &1);
        for n in [0, 2] {
            let why = answers[n].as_ref().unwrap_err().status().unwrap().code();
            assert_eq!(why, tonic::Code::Unavailable);
        }
        // A refusal is no reason to give up on the others.
        let later = [false, true].map(|is_later| async move {
            if is_later {
                tokio::time::sleep(2 * PATIENCE).await;
                return Ok(());
            }
            Err(Status::unavailable("down").into())
        });
        assert!(patiently(later).await[1].is_ok());
        assert!(patiently(Vec::<std::future::Ready<Result<(), ClientError>>>::new()).await.is_empty());
    }
}
