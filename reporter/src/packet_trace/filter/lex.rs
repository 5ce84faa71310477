//! The words of a filter.

/// Signs of two characters come before their prefixes.
const SIGNS: [&str; 15] = ["&&", "||", "!=", "==", "<=", ">=", "(", ")", "!", "=", "&", "|", "[", "]", "<"];

/// Splits a text into words and signs.
pub(super) fn split_words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
        let end = match sign {
            Some(sign) => sign.len(),
            None => {
                let is_end = |c: char| c.is_whitespace() || "()!=&|[]<>".contains(c);
                // Any other sign is its own word.
                rest.char_indices().skip(1).find(|(_, c)| is_end(*c)).map_or(rest.len(), |(at, _)| at)
            }
        };
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_signs_need_no_blanks_between_them() {
        assert_eq!(
            split_words(" !(tcp[tcpflags]&tcp-syn!=0)||net 2001:db8::/32 "),
            [
                "!",
                "(",
                "tcp",
                "[",
                "tcpflags",
                "]",
                "&",
                "tcp-syn",
                "!=",
                "0",
                ")",
                "||",
                "net",
                "2001:db8::/32"
            ]
        );
        assert_eq!(split_words("a>é<"), ["a", ">é", "<"]);
        assert!(split_words("  ").is_empty());
    }
}
