//! The parts of a name that differ from counter to counter of one definition.

/// A part of a name that stands for one of several values, written in capitals in
/// [`Definition::name`](super::Definition::name).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The word that stands for it, in capitals.
    pub word: &'static str,
    /// What can stand there.
    pub values: Values,
}

/// What can stand in the place of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any name without a dot; at the end of a counter's name, with dots.
    Any,
    /// A number.
    Number,
    /// One of these; newer programs may have more.
    Of(&'static [Value]),
}

/// One value of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// As it stands in names.
    pub name: &'static str,
    /// What a counter with this value counts, in words; empty where the definition says all.
    pub meaning: &'static str,
}

impl Value {
    /// A value that needs no words.
    pub(super) const fn plain(name: &'static str) -> Value {
        Value { name, meaning: "" }
    }
}

impl Variable {
    /// Whether the text can stand in its place, also one of a newer program.
    pub(super) fn takes(&self, text: &str) -> bool {
        match self.values {
            Values::Number => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
            Values::Any | Values::Of(_) => !text.is_empty(),
        }
    }

    /// The value of this name, if the values are listed.
    pub(super) fn value(&self, text: &str) -> Option<&'static Value> {
        match self.values {
            Values::Of(values) => values.iter().find(|value| value.name == text),
            Values::Any | Values::Number => None,
        }
    }

    /// Whether the text is one that this program knows.
    pub(super) fn knows(&self, text: &str) -> bool {
        match self.values {
            Values::Of(_) => self.value(text).is_some(),
            Values::Any | Values::Number => self.takes(text),
        }
    }
}
