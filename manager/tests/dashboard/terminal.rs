//! A terminal of a program's own: tmux, without a window.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// One program in a terminal; ended when dropped.
pub(crate) struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs a line of a shell, and then says `left with STATUS` and waits.
    pub(crate) fn start(folder: &Path, line: &str, width: u16, height: u16) -> Self {
        let terminal = Self { socket: folder.join("tmux").display().to_string() };
        let (width, height) = (width.to_string(), height.to_string());
        let line = format!("{line}; echo left with $?; exec cat");
        terminal.tmux(&["new-session", "-d", "-s", "t", "-x", &width, "-y", &height, &line]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-u", "-f", "/dev/null", "-S", &self.socket])
            .args(arguments)
            .env("LC_ALL", "C.UTF-8")
            .env("SHELL", "/bin/sh")
            .env_remove("TMUX")
            .output()
            .expect("tmux is there (scripts/install-deps test)");
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Presses keys, by tmux' names for them.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys", "-t", "t"], keys].concat());
    }

    /// Types text.
    pub(crate) fn type_text(&self, text: &str) {
        self.tmux(&["send-keys", "-t", "t", "-l", text]);
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-t", "t", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    /// What is on the screen, as text.
    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-t", "t"])
    }

    /// The same with the codes of its colours.
    pub(crate) fn coloured(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e", "-N", "-t", "t"])
    }

    /// What tmux knows of the terminal, by its formats.
    pub(crate) fn property(&self, format: &str) -> String {
        self.tmux(&["display-message", "-p", "-t", "t", format]).trim().to_owned()
    }

    /// Waits until the screen shows what is expected.
    pub(crate) fn until<T>(&self, what: &str, mut look: impl FnMut(&str) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if let Some(found) = look(&screen) {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(300), "the screen does not show {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until the screen shows a text.
    pub(crate) fn shows(&self, text: &str) {
        self.until(text, |screen| screen.contains(text).then_some(()));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-S", &self.socket, "kill-server"]).output();
    }
}
