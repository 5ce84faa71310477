//! Reads a list of a cluster at all collectors, as lists move between them: follows it at all of them at once, or reads it
//! once, at one after another.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dta_proto::control::{TailRequest, TailResponse};
use dta_proto::layout::append::next;
use futures_util::stream;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_stream::{StreamExt, StreamMap};
use tonic::Code;

use crate::{ClientError, Spread, SpreadMember, TailMessages};

/// How often to look for collectors that have come or come back.
const LOOK: Duration = Duration::from_secs(1);
/// How many looks in a row may find no collector to follow.
const LOOKS: u32 = 30;

struct Tails {
    spread: Spread,
    request: TailRequest,
    holder: String,
    /// By collector address.
    open: StreamMap<String, TailMessages>,
    /// The sequence of each collector's last batch, by its address.
    last: BTreeMap<String, u32>,
    look: Interval,
    /// Looks since there was last anything to follow.
    alone: u32,
    /// Why following a collector last failed.
    broken: Option<ClientError>,
}

/// Follows a list at all collectors, and at those that come later from its first entry on. Sequences are those of `holder`,
/// the address of the collector that has the list now: each collector counts on its own.
pub(crate) async fn follow_list(
    spread: Spread,
    request: TailRequest,
    holder: String,
) -> Result<TailMessages, ClientError> {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    look.reset();
    let (open, last) = (StreamMap::new(), BTreeMap::new());
    let mut tails =
        Tails { spread, request: request.clone(), holder, open, last, look, alone: 0, broken: None };
    tails.open_others(&request).await;
    if let (true, Some(error)) = (tails.open.is_empty(), tails.broken.take()) {
        return Err(error);
    }
    Ok(TailMessages::new(stream::try_unfold(tails, async |mut tails| {
        Ok(Some((tails.next_message().await?, tails)))
    })))
}

impl Tails {
    async fn next_message(&mut self) -> Result<TailResponse, ClientError> {
        loop {
            tokio::select! {
                Some((address, message)) = self.open.next() => match message {
                    Ok(mut message) => {
                        let is_holder = address == self.holder;
                        if let Some(sequence) = u32::try_from(message.sequence).ok().filter(|of| *of != 0) {
                            self.last.insert(address, sequence);
                        }
                        if !is_holder {
                            message.sequence = 0;
                        }
                        return Ok(message);
                    }
                    // The connection broke, as happens when its collector dies.
                    Err(error) if is_broken(&error) => {
                        self.open.remove(&address);
                        self.broken = Some(error);
                    }
                    Err(error) => return Err(error),
                },
                _ = self.look.tick() => {
                    let later = TailRequest { from_start: true, ..self.request.clone() };
                    self.open_others(&later).await;
                    self.alone = if self.open.is_empty() { self.alone + 1 } else { 0 };
                    if let (true, Some(error)) = (self.alone >= LOOKS, self.broken.take()) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Follows the list at the remaining collectors: after what was read there, or else as `request` says.
    async fn open_others(&mut self, request: &TailRequest) {
        for member in self.spread.members().iter() {
            if self.open.contains_key(&member.address) {
                continue;
            }
            let after = |last: &u32| TailRequest { from_sequence: next(*last), ..request.clone() };
            let request = self.last.get(&member.address).map_or_else(|| request.clone(), after);
            match timeout(LOOK, member.ask.tail_list(request)).await {
                Ok(Ok(messages)) => drop(self.open.insert(member.address.clone(), messages)),
                Ok(Err(error)) => self.broken = Some(error),
                // It is tried again at the next look.
                Err(_) => {}
            }
        }
    }
}

/// A list that is read once.
struct Once {
    request: TailRequest,
    holder: String,
    /// Collectors still to be read.
    left: VecDeque<SpreadMember>,
    /// The messages being read, and whether they are the holder's.
    open: Option<(TailMessages, bool)>,
}

/// Reads a list once: first what is left of it at collectors that had it, as far as they answer, then at `holder`, the
/// address of the collector that has it now. Sequences are the holder's.
pub(crate) fn read_list_once(spread: &Spread, request: TailRequest, holder: String) -> TailMessages {
    let (last, mut left): (Vec<SpreadMember>, Vec<SpreadMember>) =
        spread.members().iter().cloned().partition(|member| member.address == holder);
    left.extend(last);
    let once = Once { request, holder, left: left.into(), open: None };
    TailMessages::new(stream::try_unfold(once, async |mut once| {
        Ok(once.next_message().await?.map(|message| (message, once)))
    }))
}

impl Once {
    async fn next_message(&mut self) -> Result<Option<TailResponse>, ClientError> {
        loop {
            if let Some((messages, is_holder)) = &mut self.open {
                match messages.next_message().await {
                    Ok(Some(message)) if *is_holder => return Ok(Some(message)),
                    Ok(Some(message)) => return Ok(Some(TailResponse { sequence: 0, ..message })),
                    Err(error) if *is_holder || !is_broken(&error) => return Err(error),
                    Ok(None) | Err(_) => self.open = None,
                }
            }
            let Some(next) = self.left.pop_front() else { return Ok(None) };
            let messages = next.ask.tail_list(self.request.clone());
            if next.address == self.holder {
                self.open = Some((messages.await?, true));
            } else if let Ok(Ok(messages)) = timeout(LOOK, messages).await {
                self.open = Some((messages, false));
            }
        }
    }
}

fn is_broken(error: &ClientError) -> bool {
    error.status().is_some_and(|status| matches!(status.code(), Code::Unavailable | Code::Unknown))
}
