//! Joins the memory of stores into huge pages in the background, so that a start need not wait for it.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_memory::region::Region;
use dta_memory::store::{ServedStores, Store};
use rustix::io::Errno;
use tokio::sync::watch;

/// How often stores are checked for new memory.
const LOOK: Duration = Duration::from_secs(1);
/// How often pages are counted meanwhile; for each count, the kernel scans all memory.
const COUNT: Duration = Duration::from_secs(1);

/// Joins the memory of stores, including memory that they get later, until the collector stops.
pub(super) async fn keep_collapsed(stores: Arc<ServedStores>, stopped: watch::Receiver<bool>) {
    let mut logged = HashSet::new();
    log_page_kinds(stores.current_stores().iter().filter(|store| !store.region.wants_collapse()));
    loop {
        let todo: Vec<Arc<Store>> =
            stores.current_stores().iter().filter(|store| store.region.wants_collapse()).cloned().collect();
        if !todo.is_empty() {
            let stop = stopped.clone();
            let (all, logged_before) = (Arc::clone(&stores), std::mem::take(&mut logged));
            let run =
                tokio::task::spawn_blocking(move || collapse_stores(&all, &todo, &stop, logged_before)).await;
            match run {
                Ok(all) => logged = all,
                Err(error) => return tracing::warn!(%error, "memory is no longer joined into huge pages"),
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = super::wait_until_stopped(stopped.clone()) => return,
        }
    }
}

/// Joins the memory of `todo`, one store after another. Logs each kind of error once: takes and returns those
/// logged so far.
fn collapse_stores(
    all: &ServedStores,
    todo: &[Arc<Store>],
    stop: &watch::Receiver<bool>,
    mut logged: HashSet<ErrorKind>,
) -> HashSet<ErrorKind> {
    let mut counted = Instant::now();
    for store in todo {
        let began = Instant::now();
        let done = store.region.collapse_pages(|| {
            if counted.elapsed() > COUNT {
                Region::look_up_pages_again([&*store.region]);
                counted = Instant::now();
            }
            *stop.borrow()
        });
        if *stop.borrow() {
            return logged;
        }
        if let Err(error) = done
            && logged.insert(error.kind())
        {
            let why = match Errno::from_io_error(&error) {
                Some(Errno::NOMEM | Errno::BUSY) => "no memory for some huge pages, or a limit was reached",
                _ => {
                    "this kernel cannot join pages of such memory (Linux 6.1 and later can, for files on a tmpfs)"
                }
            };
            tracing::info!(store = %store.spec.name, %error, "{why}: the rest stays in 4 KiB pages");
        }
        if counted.elapsed() > COUNT || todo.len() == 1 {
            Region::look_up_pages_again([&*store.region]);
            counted = Instant::now();
        }
        tracing::debug!(store = %store.spec.name, seconds = began.elapsed().as_secs_f64(), "pages joined");
    }
    // All at once: a separate scan for each store would take as long as one for all.
    Region::look_up_pages_again(all.current_stores().iter().map(|store| &*store.region));
    log_page_kinds(todo);
    logged
}

/// Logs the kinds of pages that stores lie in, once these are final: before, `stores` would soon show others.
pub(super) fn log_page_kinds<'a>(stores: impl IntoIterator<Item = &'a Arc<Store>>) {
    for store in stores {
        tracing::info!(store = %store.spec.name, memory = %store.region.page_kind(), "memory of the store");
    }
}
