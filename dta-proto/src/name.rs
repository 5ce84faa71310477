//! Valid names.

/// Longest name in bytes.
pub const MAX_LEN: usize = 63;

/// The rule of [`is_valid_name`], for messages.
pub const PLAIN: &str = "1 to 63 letters, digits, '-' or '_'";
/// The rule of [`is_session`], for messages.
pub const SESSION: &str = "1 to 63 letters, digits, '-', '_', '.' or '/'";

/// Whether this is a valid name of a store or a collector.
pub fn is_valid_name(name: &str) -> bool {
    is_spelled_with(name, b"-_")
}

/// Whether this is a valid name of a session.
pub fn is_session(name: &str) -> bool {
    is_spelled_with(name, b"-_./")
}

/// Whether this may be the name of a session of a translator, or of one of its workers
/// ([`of_worker`]).
pub fn is_session_of_worker(name: &str) -> bool {
    name.len() <= MAX_LEN && is_session(translator_of(name))
}

/// The name of the session of worker `worker` of the translator `name`: the first worker's is the
/// translator's.
pub fn of_worker(name: &str, worker: usize) -> String {
    if worker == 0 { name.to_owned() } else { format!("{name}@{worker}") }
}

/// The translator of a session: the part before a worker's `@` and number, if any.
pub fn translator_of(session: &str) -> &str {
    match session.split_once('@') {
        Some((name, worker)) if is_number(worker) => name,
        _ => session,
    }
}

/// Whether this is the number of a worker other than the first, as [`of_worker`] writes it.
fn is_number(text: &str) -> bool {
    matches!(text.parse::<u8>(), Ok(1..)) && !text.starts_with(['0', '+'])
}

/// Whether a name has a valid length and consists of letters, digits and `marks`.
fn is_spelled_with(name: &str, marks: &[u8]) -> bool {
    (1..=MAX_LEN).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || marks.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_and_characters_are_bounded() {
        let longest = "a".repeat(MAX_LEN);
        for name in ["a", "Flows-1_x", &longest] {
            assert!(is_valid_name(name) && is_session(name), "{name}");
        }
        assert!(is_session("pod1/tofino.2") && !is_valid_name("pod1/tofino.2"));
        for (worker, name) in [(0, "pod1/t.2"), (1, "pod1/t.2@1"), (15, "pod1/t.2@15")] {
            assert_eq!(of_worker("pod1/t.2", worker), name);
            assert_eq!(translator_of(name), "pod1/t.2");
            assert!(is_session_of_worker(name) && is_session(name) == (worker == 0), "{name}");
        }
        for name in ["a@", "a@0", "a@01", "a@+1", "a@x", "a@256", "a@1@2", "@1", "a b@1"] {
            assert!(!is_session_of_worker(name), "{name}");
        }
        assert!(!is_session_of_worker(&of_worker(&longest, 1)));
        for name in ["", "a b", "\u{e9}", &"a".repeat(MAX_LEN + 1)] {
            assert!(!is_valid_name(name) && !is_session(name), "{name}");
        }
    }
}
