//! `dta-collector dashboard`: a terminal view of a collector, by its address or by its memory directory.
//!
//! `source` queries, `worker` decides when, `follow` finds writes to a store, `connection` tracks the age of the
//! figures, `history` keeps rates, and `then` steps through past epochs. `app` holds the state and handles keys (no
//! I/O), `view` draws it, and `element` decodes the bytes of one element. Events, top flows and paths come from
//! [`crate::int`]; `events` follows its lists.

mod app;
mod connection;
mod events;
mod follow;
mod history;
mod past_epoch;
mod source;
#[cfg(test)]
mod tests;
mod view;
mod worker;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};

pub use source::DataSource;

use app::{App, KeyAction};
use view::Theme;
use worker::Orders;

/// How long one poll of the keyboard waits; limits how late a quit is noticed.
const KEYBOARD_POLL: Duration = Duration::from_millis(100);

/// The screen is drawn at least this often, as ages grow.
const REDRAW: Duration = Duration::from_millis(250);

/// Whether a thread panicked: the panic hook has then restored the terminal, and nothing more is drawn.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Shows `source` until the user quits or the program is asked to stop (SIGTERM, SIGHUP, SIGINT), refreshed every
/// `interval`. Restores the terminal afterwards, even after a panic.
///
/// # Errors
/// Standard output is not a terminal, or the terminal fails.
pub async fn run(source: DataSource, interval: Duration) -> std::io::Result<()> {
    if !std::io::stdout().is_terminal() {
        return Err(std::io::Error::other(
            "the dashboard needs a terminal; `dta-collector stats` and `stores` print the same figures anywhere",
        ));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let app = App { tab: source.first_page(), ..App::new(source.title(), interval) };
    let theme = Theme::with_colours(dta_cli::terminal::has_colours(&std::io::stdout()));

    let (want, wanted) = watch::channel(app.wanted_data());
    let (errands, sent) = mpsc::channel(8);
    let (updates, updated) = mpsc::channel(64);
    let refresh = Arc::new(Notify::new());
    let orders = Orders { wanted, errands: sent, refresh: refresh.clone(), updates };
    let mut workers = worker::start_workers(&source, interval, orders);
    let (keys, pressed) = mpsc::channel(64);
    let keyboard = std::thread::spawn(move || watch_keyboard(&keys));

    let screen = Screen { terminal: open_terminal(), theme, app, want, errands, refresh };
    let result = tokio::select! {
        result = screen.run_until_quit(pressed, updated) => result,
        _ = workers.join_next() => Err(std::io::Error::other("a part of the dashboard ended because of a bug in \
            this program")),
        _ = terminate.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // Restoring twice would put the cursor over the panic message.
    if !PANICKED.load(Ordering::SeqCst) {
        ratatui::restore();
    }
    workers.abort_all();
    // The caller may want the keyboard. If the terminal is gone, crossterm reads nothing in a loop, and its thread
    // never ends: do not wait for it.
    let end = Instant::now() + 3 * KEYBOARD_POLL;
    while !keyboard.is_finished() && Instant::now() < end {
        tokio::time::sleep(KEYBOARD_POLL / 10).await;
    }
    result
}

/// Takes over the terminal; a panic anywhere restores it before its message is printed.
fn open_terminal() -> DefaultTerminal {
    let terminal = ratatui::init();
    let restore = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICKED.store(true, Ordering::SeqCst);
        restore(panic);
    }));
    terminal
}

/// The terminal and its state.
struct Screen {
    terminal: DefaultTerminal,
    theme: Theme,
    app: App,
    want: watch::Sender<app::WantedData>,
    errands: mpsc::Sender<app::Errand>,
    refresh: Arc<Notify>,
}

impl Screen {
    /// Draws, and handles keys and updates, until the user quits.
    async fn run_until_quit(
        mut self,
        mut pressed: mpsc::Receiver<Event>,
        mut updated: mpsc::Receiver<app::Update>,
    ) -> std::io::Result<()> {
        let mut redraw = tokio::time::interval(REDRAW);
        redraw.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            if !PANICKED.load(Ordering::SeqCst) {
                let (app, theme) = (&mut self.app, &self.theme);
                self.terminal.draw(|frame| view::draw_dashboard(frame, app, theme, Instant::now()))?;
            }
            tokio::select! {
                event = pressed.recv() => match event {
                    Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                        let action = self.app.handle_key(key);
                        self.perform_action(action)?;
                    }
                    // A resize redraws, like any event.
                    Some(_) => {}
                    None => return Err(std::io::Error::other("the terminal's input ended")),
                },
                Some(update) = updated.recv() => self.app.apply_update(update),
                _ = redraw.tick() => {}
            }
            if self.app.quit {
                return Ok(());
            }
            let wish = self.app.wanted_data();
            self.want.send_if_modified(|old| {
                let changed = *old != wish;
                *old = wish;
                changed
            });
        }
    }

    fn perform_action(&mut self, action: Option<KeyAction>) -> std::io::Result<()> {
        match action {
            Some(KeyAction::Do(errand)) => {
                if let Err(full) = self.errands.try_send(errand) {
                    self.app.report_unsent(full.into_inner());
                }
            }
            Some(KeyAction::Refresh) => {
                self.refresh.notify_one();
                self.terminal.clear()?;
            }
            Some(KeyAction::Suspend) => {
                ratatui::restore();
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP)?;
                self.terminal = ratatui::init();
                self.terminal.clear()?;
            }
            None => {}
        }
        Ok(())
    }
}

/// Sends terminal events until the receiver is gone.
fn watch_keyboard(keys: &mpsc::Sender<Event>) {
    while !keys.is_closed() {
        match event::poll(KEYBOARD_POLL) {
            Ok(false) => {}
            Ok(true) => match event::read() {
                Ok(event) => {
                    if keys.blocking_send(event).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            },
            Err(_) => return,
        }
    }
}
