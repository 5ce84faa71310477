//! Places for connections: how many there are in total and per address, and which connection is closed when they are full.
//!
//! A connection is pending until it has shown that it speaks TLS (if required) and HTTP/2. When the places are full,
//! the oldest pending one is closed for the new one, so silent connections lock nobody out. If none is pending, the
//! newest connection of the origin with the most is closed, if that has more than the new one's origin would: so a
//! few origins lock nobody out either. Before that, the longest unused connection of the new one's own origin is
//! closed: so forgotten connections lock out nobody of the same origin, such as a whole host.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::transport::ServerLimits;
use crate::transport::stream::ConnectionCloser;

/// How long a connection must be without a call before it is closed for another of its origin.
const UNUSED: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Gate {
    connections: usize,
    per_address: usize,
    inner: Mutex<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    /// Number of the last connection that entered: lower is older.
    last: u64,
    places: BTreeMap<u64, ConnectionPlace>,
}

#[derive(Debug)]
struct ConnectionPlace {
    origin: IpAddr,
    waits: Waits,
}

#[derive(Debug)]
enum Waits {
    /// The handshake task is being created.
    Unattended,
    /// Aborting this task closes the connection.
    Until(AbortHandle),
    /// Past the handshake; this closes the connection.
    No(Arc<ConnectionCloser>),
}

/// The place of one connection; free again when this is dropped.
#[derive(Debug)]
pub(crate) struct GatePass {
    gate: Arc<Gate>,
    number: u64,
}

/// The result of entering.
#[derive(Debug)]
pub(crate) enum GateResult {
    /// A place, and whether another connection was closed for it.
    Passed(GatePass, bool),
    /// Connections past their handshake hold all places of this address.
    Full,
}

impl Gate {
    pub(crate) fn new(limits: &ServerLimits) -> Arc<Self> {
        Arc::new(Self {
            connections: limits.connections,
            per_address: limits.connections_per_address,
            inner: Mutex::default(),
        })
    }

    pub(crate) fn try_enter(self: &Arc<Self>, address: IpAddr) -> GateResult {
        let origin = network_origin(address);
        let mut inner = self.lock_state();
        let of_origin = inner.places.values().filter(|taken| taken.origin == origin).count();
        let full = inner.places.len() >= self.connections;
        let mut left = false;
        if of_origin >= self.per_address || full {
            // Own connections first: nobody displaces others while connections of the same address are pending.
            let oldest = |of_all: bool| {
                let mut waiting =
                    inner.places.iter().filter(|(_, taken)| matches!(taken.waits, Waits::Until(_)));
                waiting.find(|(_, taken)| of_all || taken.origin == origin).map(|(number, _)| *number)
            };
            let others = || {
                if of_origin < self.per_address {
                    oldest(true).or_else(|| inner.newest_of_busiest(of_origin))
                } else {
                    None
                }
            };
            let own = || oldest(false).or_else(|| inner.longest_unused(origin));
            let Some(number) = own().or_else(others) else { return GateResult::Full };
            match inner.places.remove(&number).map(|taken| taken.waits) {
                Some(Waits::Until(task)) => task.abort(),
                Some(Waits::No(line)) => drop(line.close_connection()),
                Some(Waits::Unattended) | None => {}
            }
            left = true;
        }
        inner.last += 1;
        let number = inner.last;
        inner.places.insert(number, ConnectionPlace { origin, waits: Waits::Unattended });
        GateResult::Passed(GatePass { gate: self.clone(), number }, left)
    }

    /// Records that the connection of a place is in its handshake, run by `task`.
    pub(crate) fn set_handshake_task(&self, number: u64, task: AbortHandle) {
        if let Some(taken) = self.lock_state().places.get_mut(&number)
            && matches!(taken.waits, Waits::Unattended)
        {
            taken.waits = Waits::Until(task);
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, GateState> {
        // Each change is one insertion or removal.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GateState {
    /// The newest connection past its handshake, of the origin with the most, which must have at least two more than
    /// `own`.
    fn newest_of_busiest(&self, own: usize) -> Option<u64> {
        let mut origins = HashMap::new();
        for (number, taken) in &self.places {
            if matches!(taken.waits, Waits::No(_)) {
                let (count, newest) = origins.entry(taken.origin).or_insert((0, 0));
                (*count, *newest) = (*count + 1, *number);
            }
        }
        let most = origins.into_values().max()?;
        (most.0 > own + 1).then_some(most.1)
    }

    /// The connection of an origin that has gone longest without a call.
    fn longest_unused(&self, origin: IpAddr) -> Option<u64> {
        let unused = self.places.iter().filter_map(|(number, taken)| match &taken.waits {
            Waits::No(line) if taken.origin == origin => Some((line.unused_since()?, *number)),
            _ => None,
        });
        unused.min().filter(|(since, _)| since.elapsed() >= UNUSED).map(|(_, number)| number)
    }
}

impl GatePass {
    pub(crate) fn place_number(&self) -> u64 {
        self.number
    }

    /// Ends the handshake: the connection stays, unless it was closed already (`false`). `line` closes it.
    #[must_use]
    pub(crate) fn finish_handshake(&self, line: Arc<ConnectionCloser>) -> bool {
        let mut inner = self.gate.lock_state();
        let taken = inner.places.get_mut(&self.number);
        taken.map(|taken| taken.waits = Waits::No(line)).is_some()
    }
}

impl Drop for GatePass {
    fn drop(&mut self) {
        self.gate.lock_state().places.remove(&self.number);
    }
}

/// Whoever has an IPv6 address has the 64 bits below it.
pub(crate) fn network_origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::sync::oneshot;

    use super::*;

    fn gate(connections: usize, connections_per_address: usize) -> Arc<Gate> {
        Gate::new(&ServerLimits {
            connections,
            connections_per_address,
            ..crate::transport::testing::test_limits()
        })
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// A place whose handshake never ends.
    fn waiting(gate: &Arc<Gate>, last: u8) -> (GatePass, tokio::task::JoinHandle<()>) {
        let GateResult::Passed(place, _) = gate.try_enter(address(last)) else { panic!("full") };
        let task = tokio::spawn(std::future::pending());
        gate.set_handshake_task(place.place_number(), task.abort_handle());
        (place, task)
    }

    /// The closer of a connection in use.
    fn line() -> (Arc<ConnectionCloser>, oneshot::Receiver<()>) {
        let (line, cut) = ConnectionCloser::new();
        let line = Arc::new(line);
        std::mem::forget(line.begin_call());
        (line, cut)
    }

    fn staying(gate: &Arc<Gate>, last: u8) -> GatePass {
        let (place, task) = waiting(gate, last);
        assert!(place.finish_handshake(line().0));
        drop(task);
        place
    }

    #[tokio::test]
    async fn places_are_counted_for_all_and_for_each_address() {
        let gate = gate(3, 2);
        let mut one = vec![staying(&gate, 1), staying(&gate, 1)];
        assert!(matches!(gate.try_enter(address(1)), GateResult::Full));
        one.pop();
        let _others = [staying(&gate, 2), staying(&gate, 4)];
        assert!(matches!(gate.try_enter(address(3)), GateResult::Full));
        drop(one);
        assert!(matches!(gate.try_enter(address(3)), GateResult::Passed(_, false)));
    }

    #[tokio::test]
    async fn the_oldest_that_waits_leaves() {
        let gate = gate(3, 2);
        let (first, first_task) = waiting(&gate, 1);
        let (_second, second_task) = waiting(&gate, 1);
        // The address is full: its own oldest connection is closed.
        let GateResult::Passed(third, true) = gate.try_enter(address(1)) else { panic!("full") };
        assert!(first_task.await.unwrap_err().is_cancelled());
        // Dropping a closed connection frees no second place.
        drop(first);
        assert!(third.finish_handshake(line().0));
        let _other = staying(&gate, 2);
        // All places are taken: the pending connection, though another address's, is closed, too.
        assert!(matches!(gate.try_enter(address(3)), GateResult::Passed(_, true)));
        tokio::time::timeout(Duration::from_secs(60), second_task).await.unwrap().unwrap_err();
    }

    #[tokio::test]
    async fn those_of_most_leave_for_one_who_has_fewer() {
        let gate = gate(6, 4);
        let enter = |last| {
            let GateResult::Passed(place, left) = gate.try_enter(address(last)) else { panic!("full") };
            let (line, cut) = line();
            assert!(place.finish_handshake(line));
            (place, cut, left)
        };
        let mut one = [enter(1), enter(1), enter(1), enter(1)];
        let mut two = [enter(2), enter(2)];
        // The newest of the first address.
        let (_three, mut cut, true) = enter(3) else { panic!("nobody left") };
        assert!(one[3].1.try_recv().is_ok() && one[2].1.try_recv().is_err());
        // Dropping a closed connection frees no second place.
        let [first, second, third, last] = one;
        drop(last);
        let (_four, _, true) = enter(4) else { panic!("nobody left") };
        assert_eq!(gate.lock_state().places.len(), 6);
        // The first two addresses have two each: the third, which has one, would then have as many.
        assert!(matches!(gate.try_enter(address(3)), GateResult::Full));
        assert!(two.iter_mut().all(|two| two.1.try_recv().is_err()) && cut.try_recv().is_err());
        drop((first, second, third));
        assert_eq!(gate.lock_state().places.len(), 4);
    }

    #[tokio::test]
    async fn an_unused_connection_leaves_for_another_of_its_address() {
        let gate = gate(4, 2);
        let _used = staying(&gate, 1);
        // If the machine stands still for as long, it has left already: then the same with another one.
        let (_unused, mut cut) = loop {
            let begun = Instant::now();
            let (unused, task) = waiting(&gate, 1);
            let (line, cut) = ConnectionCloser::new();
            assert!(unused.finish_handshake(Arc::new(line)));
            drop(task);
            if matches!(gate.try_enter(address(1)), GateResult::Full) {
                break (unused, cut);
            }
            assert!(begun.elapsed() >= UNUSED, "it is not unused for long");
        };
        tokio::time::sleep(UNUSED).await;
        assert!(matches!(gate.try_enter(address(1)), GateResult::Passed(_, true)));
        assert!(cut.try_recv().is_ok());
    }

    #[test]
    fn an_ipv6_network_is_one_origin() {
        let of = |text: &str| network_origin(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), address(1));
    }
}
