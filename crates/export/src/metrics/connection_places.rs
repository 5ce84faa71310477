//! Slots for connections to a small port. When they are full, a connection is closed for the newcomer, so that nobody
//! can lock others out: preferably one that has not sent its request, from the busiest address, and the oldest of
//! those.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct ConnectionPlaces {
    most: usize,
    /// By number: a lower one is older.
    taken: Mutex<BTreeMap<u64, PlacedConnection>>,
    entered: AtomicU64,
    displaced: AtomicU64,
}

#[derive(Debug)]
struct PlacedConnection {
    address: IpAddr,
    has_asked: bool,
    /// Aborting this task closes the connection.
    task: Option<AbortHandle>,
}

/// The slot of one connection; free again when this is dropped.
#[derive(Debug)]
pub struct ConnectionPlace {
    places: Arc<ConnectionPlaces>,
    number: u64,
}

impl ConnectionPlaces {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: Mutex::default(),
            entered: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
        })
    }

    /// Connections that were closed for others.
    pub fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }

    /// Accepts connections forever, each with a slot, and serves them concurrently. `what` is served, for the log.
    pub async fn accept_connections<F>(
        self: Arc<Self>,
        listener: TcpListener,
        what: &'static str,
        serve: impl Fn(TcpStream, ConnectionPlace) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let place = self.admit_connection(address.ip());
                    let number = place.number;
                    self.register_task(number, tokio::spawn(serve(stream, place)).abort_handle());
                }
                Err(error) => {
                    tracing::debug!(%error, what, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Takes a slot, closing another connection if needed.
    fn admit_connection(self: &Arc<Self>, address: IpAddr) -> ConnectionPlace {
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        let mut all = self.lock_connections();
        if all.len() >= self.most {
            let of = |address| all.values().filter(|taken| taken.address == address).count();
            let last = all
                .iter()
                .max_by_key(|(number, taken)| {
                    (!taken.has_asked, of(taken.address), std::cmp::Reverse(**number))
                })
                .map(|(number, _)| *number);
            if let Some(task) = last.and_then(|number| all.remove(&number)).and_then(|taken| taken.task) {
                task.abort();
            }
            self.displaced.fetch_add(1, Ordering::Relaxed);
        }
        all.insert(number, PlacedConnection { address, has_asked: false, task: None });
        ConnectionPlace { places: self.clone(), number }
    }

    fn lock_connections(&self) -> MutexGuard<'_, BTreeMap<u64, PlacedConnection>> {
        // Each change is one insertion or removal.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the task that serves a slot's connection.
    fn register_task(&self, number: u64, task: AbortHandle) {
        match self.lock_connections().get_mut(&number) {
            Some(taken) => taken.task = Some(task),
            // It is over, or was closed already.
            None => task.abort(),
        }
    }
}

impl ConnectionPlace {
    pub fn mark_requested(&self) {
        if let Some(taken) = self.places.lock_connections().get_mut(&self.number) {
            taken.has_asked = true;
        }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.places.lock_connections().remove(&self.number);
    }
}
