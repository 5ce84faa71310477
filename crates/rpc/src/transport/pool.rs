//! Places shared by callers: who gets one, and who must give one back.
//!
//! A free place goes to the waiting caller with the fewest, in the order of requests. Places may be idle, while a caller is slow
//! to read answers or to send messages. A caller that has waited [`PATIENCE`] takes back places that have been idle for as long,
//! from the caller with the most, if that has more than itself. So callers that hold places without using them lock nobody out,
//! however many they are.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::transport::stream::ConnectionCloser;

/// How long a caller must have waited, and a place must have been idle, before the place is taken back.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait for a place that is being taken back before taking another.
const AGAIN: Duration = Duration::from_millis(500);
/// Places that a caller gets from [`Pool::try_acquire`] even if none is free.
const ALWAYS: usize = 4;

/// Places of one kind.
#[derive(Debug)]
pub struct Pool {
    places: usize,
    per_caller: usize,
    patience: Duration,
    displaces_own: bool,
    inner: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    taken: usize,
    /// Number of the last request: lower is older.
    last: u64,
    /// Callers that have places or wait for some.
    callers: BTreeMap<Arc<str>, CallerState>,
}

#[derive(Debug, Default)]
struct CallerState {
    has: usize,
    waiting: BTreeMap<u64, PendingRequest>,
    idle: BTreeMap<u64, Idle>,
}

#[derive(Debug)]
struct PendingRequest {
    weight: usize,
    place: oneshot::Sender<Permit>,
}

#[derive(Debug)]
struct Idle {
    since: Instant,
    weight: usize,
    /// Closing it frees the place soon.
    line: Arc<ConnectionCloser>,
    is_cut: bool,
}

impl CallerState {
    /// How many places it has, not counting those being taken back.
    fn kept_places(&self) -> usize {
        self.has - self.idle.values().filter(|idle| idle.is_cut).map(|idle| idle.weight).sum::<usize>()
    }

    /// Number and start of the place that has been idle longest, if long enough.
    fn oldest_idle(&self, now: Instant, patience: Duration) -> Option<(u64, Instant)> {
        let long = self.idle.iter().filter(|(_, idle)| !idle.is_cut && now - idle.since >= patience);
        long.map(|(number, idle)| (*number, idle.since)).min_by_key(|(_, since)| *since)
    }
}

/// One place, or several requested together; free again when this is dropped.
#[derive(Debug)]
pub struct Permit {
    pool: Arc<Pool>,
    caller: Arc<str>,
    number: u64,
    weight: usize,
}

impl Pool {
    /// A pool of `places`, of which one caller may have `per_caller`.
    pub(crate) fn new(places: usize, per_caller: usize) -> Arc<Self> {
        Arc::new(Self {
            places,
            per_caller,
            patience: PATIENCE,
            displaces_own: false,
            inner: Mutex::default(),
        })
    }

    /// A pool with another patience, where a caller also takes back its own idle places for its waiting requests.
    pub fn with_patience(places: usize, per_caller: usize, patience: Duration) -> Arc<Self> {
        Arc::new(Self { places, per_caller, patience, displaces_own: true, inner: Mutex::default() })
    }

    /// Waits for `weight` places, at most as many as one caller may have, and adds the number of displaced connections to `cuts`.
    pub async fn take(self: &Arc<Self>, caller: &Arc<str>, weight: usize, cuts: &AtomicU64) -> Permit {
        let weight = weight.min(self.per_caller).min(self.places);
        let mut turn = std::pin::pin!(self.wait_for_places(caller, weight));
        let mut patience = self.patience;
        loop {
            if let Ok(place) = tokio::time::timeout(patience, &mut turn).await {
                return place;
            }
            cuts.fetch_add(self.displace_idle(caller, weight), Ordering::Relaxed);
            patience = AGAIN;
        }
    }

    /// Waits for `weight` places without displacing anybody.
    pub(crate) async fn wait_for_places(self: &Arc<Self>, caller: &Arc<str>, weight: usize) -> Permit {
        let (sender, place) = oneshot::channel();
        let number = self.update_and_grant(|inner| {
            inner.last += 1;
            let waiting = PendingRequest { weight, place: sender };
            inner.callers.entry(caller.clone()).or_default().waiting.insert(inner.last, waiting);
            inner.last
        });
        let _leave = Leave { pool: self, caller, number };
        // Only `_leave` drops its sender.
        place.await.expect("a waiting caller gets a place")
    }

    /// A place, if one is free or the caller has few.
    pub(crate) fn try_acquire(self: &Arc<Self>, caller: &Arc<str>) -> Option<Permit> {
        let mut inner = self.lock_state();
        let has = inner.callers.get(caller).map_or(0, |caller| caller.has);
        if has >= self.per_caller || inner.taken >= self.places && has >= ALWAYS {
            return None;
        }
        inner.last += 1;
        inner.taken += 1;
        inner.callers.entry(caller.clone()).or_default().has += 1;
        Some(Permit { pool: self.clone(), caller: caller.clone(), number: inner.last, weight: 1 })
    }

    /// Makes a change, and then grants free places.
    fn update_and_grant<T>(self: &Arc<Self>, change: impl FnOnce(&mut PoolState) -> T) -> T {
        let mut inner = self.lock_state();
        let done = change(&mut inner);
        let given = self.grant_places(&mut inner);
        drop(inner);
        for (waits, place) in given {
            // If a request's receiver is gone, its places come back here, so the lock must be free.
            let _ = waits.send(place);
        }
        done
    }

    fn grant_places(self: &Arc<Self>, inner: &mut PoolState) -> Vec<(oneshot::Sender<Permit>, Permit)> {
        let mut given = Vec::new();
        loop {
            let fits = |caller: &CallerState| {
                let (number, first) = caller.waiting.first_key_value()?;
                (caller.has + first.weight <= self.per_caller).then_some((caller.has, *number))
            };
            let next = inner.callers.iter_mut().filter_map(|(name, c)| Some((fits(c)?, name, c)));
            let Some((_, name, caller)) = next.min_by_key(|(order, ..)| *order) else { break };
            let Some(first) = caller.waiting.first_entry() else { break };
            // A request for many places waits until they are free, and others wait behind it.
            if inner.taken + first.get().weight > self.places {
                break;
            }
            let (number, PendingRequest { weight, place }) = first.remove_entry();
            caller.has += weight;
            inner.taken += weight;
            given.push((place, Permit { pool: self.clone(), caller: name.clone(), number, weight }));
        }
        given
    }

    /// Makes room for `weight` places of a caller by taking back idle ones. Returns how many connections were closed.
    fn displace_idle(&self, caller: &str, weight: usize) -> u64 {
        let (mut inner, now) = (self.lock_state(), Instant::now());
        let own = inner.callers.get(caller).map_or(0, |caller| caller.has);
        // A caller that waits only for its own places displaces nobody else.
        let waits_for_own = own + weight > self.per_caller;
        let mut free = self.places.saturating_sub(inner.taken);
        if waits_for_own {
            free = free.min(self.per_caller.saturating_sub(own));
        }
        let mut cuts = 0;
        while free < weight {
            let others = inner.callers.iter_mut().filter(|(name, other)| {
                self.displaces_own && ***name == *caller || !waits_for_own && other.kept_places() > own
            });
            let found = others.filter_map(|(_, other)| Some((other.oldest_idle(now, self.patience)?, other)));
            let most = found.max_by_key(|((_, since), other)| (other.kept_places(), Reverse(*since)));
            let Some(((number, _), other)) = most else { break };
            let Some(idle) = other.idle.get_mut(&number) else { break };
            idle.is_cut = true;
            free += idle.weight;
            // Several places may share a connection.
            cuts += u64::from(idle.line.close_connection());
        }
        cuts
    }

    fn lock_state(&self) -> MutexGuard<'_, PoolState> {
        // Nothing panics between changes that belong together.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Forgets a caller that has no places and waits for none.
    fn forget_if_unused(&mut self, caller: &str) {
        if self.callers.get(caller).is_some_and(|caller| caller.has == 0 && caller.waiting.is_empty()) {
            self.callers.remove(caller);
        }
    }
}

impl Permit {
    pub(crate) fn caller_name(&self) -> &Arc<str> {
        &self.caller
    }

    /// Marks the place as idle: it may be taken back by closing `line`.
    pub(crate) fn mark_idle(&self, line: Arc<ConnectionCloser>) {
        self.mark_idle_since(Instant::now(), line);
    }

    /// As `mark_idle`, but idle since `since`.
    pub fn mark_idle_since(&self, since: Instant, line: Arc<ConnectionCloser>) {
        let idle = Idle { since, weight: self.weight, line, is_cut: false };
        if let Some(caller) = self.pool.lock_state().callers.get_mut(&self.caller) {
            caller.idle.insert(self.number, idle);
        }
    }

    /// Marks the place as no longer idle.
    pub fn mark_busy(&self) {
        if let Some(caller) = self.pool.lock_state().callers.get_mut(&self.caller) {
            caller.idle.remove(&self.number);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.pool.update_and_grant(|inner| {
            inner.taken -= self.weight;
            if let Some(caller) = inner.callers.get_mut(&self.caller) {
                caller.has -= self.weight;
                caller.idle.remove(&self.number);
            }
            inner.forget_if_unused(&self.caller);
        });
    }
}

/// Removes a request that nobody is waiting for any more.
struct Leave<'a> {
    pool: &'a Arc<Pool>,
    caller: &'a Arc<str>,
    number: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.pool.update_and_grant(|inner| {
            if let Some(caller) = inner.callers.get_mut(self.caller) {
                caller.waiting.remove(&self.number);
            }
            inner.forget_if_unused(self.caller);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str) -> Arc<str> {
        name.into()
    }

    /// Requests places in a separate task.
    async fn ask(pool: &Arc<Pool>, name: &str, weight: usize) -> tokio::task::JoinHandle<Permit> {
        let (pool, caller) = (pool.clone(), caller(name));
        let waiting = |pool: &Pool| -> usize {
            let inner = pool.lock_state();
            inner.callers.values().map(|caller| caller.has + caller.waiting.len()).sum()
        };
        let before = waiting(&pool);
        let (asked, cuts) = (pool.clone(), AtomicU64::new(0));
        let task = tokio::spawn(async move { asked.take(&caller, weight, &cuts).await });
        // It must be requested before those that follow.
        while waiting(&pool) == before && !task.is_finished() {
            tokio::task::yield_now().await;
        }
        task
    }

    async fn take(pool: &Arc<Pool>, name: &str, weight: usize) -> Permit {
        let (caller, cuts) = (caller(name), AtomicU64::new(0));
        let taken = pool.take(&caller, weight, &cuts);
        tokio::time::timeout(Duration::from_secs(60), taken).await.expect("a place")
    }

    #[tokio::test]
    async fn a_free_place_goes_to_who_has_fewest_and_asked_first() {
        let pool = Pool::new(4, 3);
        let (a1, _a2, _a3) =
            (take(&pool, "a", 1).await, take(&pool, "a", 1).await, take(&pool, "a", 1).await);
        let b1 = take(&pool, "b", 1).await;
        // Of these, only b has a place yet.
        let (b2, c, d) = (ask(&pool, "b", 1).await, ask(&pool, "c", 1).await, ask(&pool, "d", 1).await);
        drop(a1);
        let c = c.await.unwrap();
        assert!(!b2.is_finished() && !d.is_finished());
        drop(c);
        let _d = d.await.unwrap();
        assert!(!b2.is_finished());
        drop(b1);
        let _b2 = b2.await.unwrap();
        // Nothing is kept about callers that are gone.
        assert_eq!(pool.lock_state().callers.keys().map(|name| &**name).collect::<Vec<_>>(), ["a", "b", "d"]);
    }

    #[tokio::test]
    async fn one_caller_has_his_share_and_one_who_leaves_keeps_nobody() {
        let pool = Pool::new(8, 4);
        let own = take(&pool, "a", 4).await;
        let more = ask(&pool, "a", 1).await;
        let other = take(&pool, "b", 3).await;
        assert!(!more.is_finished());
        // One place is free, and c wants more.
        let (c, d) = (ask(&pool, "c", 2).await, ask(&pool, "d", 1).await);
        assert!(!c.is_finished() && !d.is_finished());
        c.abort();
        let _d = d.await.unwrap();
        drop(own);
        let _more = more.await.unwrap();
        drop(other);
        assert_eq!(pool.lock_state().taken, 2);
        // The request is cut to what one caller may have.
        assert_eq!(take(&pool, "c", 100).await.weight, 4);
    }

    #[tokio::test]
    async fn idle_places_of_who_has_most_are_taken_back() {
        let pool = Pool::new(6, 4);
        let mut lines = Vec::new();
        let mut idle = async |name: &str| {
            let place = take(&pool, name, 1).await;
            let (line, cut) = ConnectionCloser::new();
            place.mark_idle(Arc::new(line));
            // Closing the connection ends the holder of the place.
            lines.push(tokio::spawn(async move {
                let _ = cut.await;
                drop(place);
            }));
        };
        for name in ["a", "a", "a", "b", "b"] {
            idle(name).await;
        }
        let _works = take(&pool, "b", 1).await;
        let cuts = AtomicU64::new(0);
        let (c, d) = (caller("c"), caller("d"));
        let newcomer = tokio::time::timeout(Duration::from_secs(60), pool.take(&c, 1, &cuts));
        let _c = newcomer.await.expect("a's oldest");
        assert_eq!(cuts.load(Ordering::Relaxed), 1);
        assert!(lines.remove(0).await.is_ok() && !lines.iter().any(|line| line.is_finished()));
        // Two at a time: b's oldest, and then a's.
        let two = tokio::time::timeout(Duration::from_secs(60), pool.take(&d, 2, &cuts));
        let _d = two.await.expect("two");
        assert_eq!(cuts.load(Ordering::Relaxed), 3);
        // Nobody has more than d now.
        let more = tokio::time::timeout(3 * PATIENCE, pool.take(&d, 2, &cuts)).await;
        assert!(more.is_err());
        assert_eq!(cuts.load(Ordering::Relaxed), 3);
        assert_eq!(pool.lock_state().taken, 6);
    }

    #[tokio::test]
    async fn a_caller_takes_back_its_own_idle_places_where_that_is_asked_for() {
        let pool = Pool::with_patience(4, 2, Duration::from_millis(50));
        let first = take(&pool, "a", 1).await;
        let _second = take(&pool, "a", 1).await;
        let (line, cut) = ConnectionCloser::new();
        first.mark_idle(Arc::new(line));
        let ended = tokio::spawn(async move {
            let _ = cut.await;
            drop(first);
        });
        let _third = take(&pool, "a", 1).await;
        ended.await.unwrap();
        // Busy places are not taken back.
        let (a, cuts) = (caller("a"), AtomicU64::new(0));
        assert!(tokio::time::timeout(Duration::from_millis(500), pool.take(&a, 1, &cuts)).await.is_err());
        assert_eq!((pool.lock_state().taken, cuts.load(Ordering::Relaxed)), (2, 0));
    }

    #[test]
    fn each_caller_has_some_places_at_once() {
        let pool = Pool::new(10, 8);
        let of =
            |name: &str, n: usize| (0..n).map_while(|_| pool.try_acquire(&caller(name))).collect::<Vec<_>>();
        let (a, b) = (of("a", 20), of("b", 20));
        assert_eq!((a.len(), b.len()), (8, ALWAYS));
        let c = of("c", 20);
        assert_eq!(c.len(), ALWAYS);
        drop((a, b));
        assert_eq!(of("c", 20).len(), 8 - ALWAYS);
        drop(c);
        assert!(pool.lock_state().callers.is_empty() && pool.lock_state().taken == 0);
    }
}
