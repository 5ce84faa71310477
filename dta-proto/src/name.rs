//! What may stand in a name.

/// Most bytes of a name.
pub const MAX_LEN: usize = 63;

/// The rule of [`is_plain`], for messages.
pub const PLAIN: &str = "1 to 63 letters, digits, '-' or '_'";
/// The rule of [`is_session`], for messages.
pub const SESSION: &str = "1 to 63 letters, digits, '-', '_', '.' or '/'";

/// Whether this may be the name of a store or a collector.
pub fn is_plain(name: &str) -> bool {
    has(name, b"-_")
}

/// Whether this may be the name of a session.
pub fn is_session(name: &str) -> bool {
    has(name, b"-_./")
}

/// Whether a name is as long as a name may be, and of letters, digits and `marks`.
fn has(name: &str, marks: &[u8]) -> bool {
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
            assert!(is_plain(name) && is_session(name), "{name}");
        }
        assert!(is_session("pod1/tofino.2") && !is_plain("pod1/tofino.2"));
        for name in ["", "a b", "\u{e9}", &"a".repeat(MAX_LEN + 1)] {
            assert!(!is_plain(name) && !is_session(name), "{name}");
        }
    }
}
