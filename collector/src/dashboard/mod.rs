//! `dta-collector dashboard`: a terminal view of a collector, by its address or by its memory directory.
//!
//! [`source`] asks, [`written`] finds out where a store is written, [`app`] holds what is shown and what keys
//! do (no I/O), [`view`] draws it, [`element`] explains the bytes of one element. A worker task fetches, so
//! that a slow collector never freezes the keys.

mod app;
mod element;
mod source;
#[cfg(test)]
mod tests;
mod view;
mod written;

use std::io::IsTerminal;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::{mpsc, watch};

pub use source::Source;

use app::{App, Update, Want};

/// How long one look at the keyboard waits; bounds how late a quit is noticed.
const KEYBOARD_POLL: Duration = Duration::from_millis(100);

/// Shows `source` until the user quits, refreshed every `interval`.
///
/// # Errors
/// Where standard output is no terminal, or the terminal fails.
pub async fn run(source: Source, interval: Duration) -> std::io::Result<()> {
    if !std::io::stdout().is_terminal() {
        return Err(std::io::Error::other(
            "the dashboard needs a terminal; `dta-collector stats` and `stores` print the same figures anywhere",
        ));
    }
    let mut app = App::new(source.title());
    let (want, wanted) = watch::channel(app.want());
    let (asked, questions) = mpsc::channel(8);
    let (updates, mut updated) = mpsc::channel(64);
    let worker = tokio::spawn(work(source, interval, wanted, questions, updates));

    let (keys, mut pressed) = mpsc::channel(64);
    let keyboard = std::thread::spawn(move || watch_keyboard(&keys));

    // `init` restores the terminal on a panic as well.
    let mut terminal = ratatui::init();
    let result = loop {
        if let Err(error) = terminal.draw(|frame| view::draw(frame, &app)) {
            break Err(error);
        }
        tokio::select! {
            event = pressed.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if let Some(question) = app.key(key) {
                        // A full queue means that the collector does not answer: the status line says so
                        // already.
                        let _ = asked.try_send(question);
                    }
                    want.send_if_modified(|old| { let new = app.want(); let changed = *old != new; *old = new; changed });
                }
                // A resize redraws, as any event does.
                Some(_) => {}
                None => break Err(std::io::Error::other("the terminal's input ended")),
            },
            Some(update) = updated.recv() => {
                app.update(update);
                want.send_if_modified(|old| { let new = app.want(); let changed = *old != new; *old = new; changed });
            },
        }
        if app.quit {
            break Ok(());
        }
    };
    ratatui::restore();
    worker.abort();
    drop(pressed);
    let _ = keyboard.join();
    result
}

/// Sends terminal events until nobody listens any more.
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

/// Fetches what is wanted, at every interval and at once when the wish changes.
async fn work(
    mut source: Source,
    interval: Duration,
    mut wanted: watch::Receiver<Want>,
    mut questions: mpsc::Receiver<app::Question>,
    updates: mpsc::Sender<Update>,
) {
    let mut tick = tokio::time::interval(interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let full = tokio::select! {
            _ = tick.tick() => true,
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                false
            }
            Some(question) = questions.recv() => {
                let answer = source.query(&question).await;
                if updates.send(Update::Answer(question, answer)).await.is_err() {
                    return;
                }
                continue;
            }
        };
        let want = wanted.borrow_and_update().clone();
        let mut news = Vec::new();
        if full {
            news.push(Update::Snapshot(source.snapshot().await));
        }
        if let Some(spec) = want.follow
            && let Ok(Some(offset)) = source.written(&spec).await
        {
            news.push(Update::Written(spec.name, offset));
        }
        if let Some(window) = want.memory {
            let bytes = source.memory_bytes(&window).await;
            news.push(Update::Memory(window, bytes));
        }
        if let Some(list) = want.list {
            let read = source.tail(&list).await;
            news.push(Update::Entries(list, read));
        }
        for update in news {
            if updates.send(update).await.is_err() {
                return;
            }
        }
    }
}
