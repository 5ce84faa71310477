//! The variable parts of counter names.

/// A part of a name that stands for one of several values, written in capitals in
/// [`Definition::name`](super::Definition::name).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its placeholder, in capitals.
    pub word: &'static str,
    /// Its possible values.
    pub values: Values,
}

/// The possible values of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any name without a dot; at the end of a counter's name, with dots.
    Any,
    /// A number.
    Number,
    /// One of these; newer programs may know more.
    Of(&'static [VariableValue]),
}

/// One value of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariableValue {
    /// Its spelling in names.
    pub name: &'static str,
    /// What a counter with this value counts; empty where the definition says it all.
    pub meaning: &'static str,
}

impl VariableValue {
    /// A value that needs no explanation.
    pub(super) const fn without_meaning(name: &'static str) -> VariableValue {
        VariableValue { name, meaning: "" }
    }
}

impl Variable {
    /// Whether the text is a possible value, even one of a newer program.
    pub(super) fn is_possible_value(&self, text: &str) -> bool {
        match self.values {
            Values::Number => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
            Values::Any | Values::Of(_) => !text.is_empty(),
        }
    }

    /// The value of this name, if the values are listed.
    pub(super) fn listed_value(&self, text: &str) -> Option<&'static VariableValue> {
        match self.values {
            Values::Of(values) => values.iter().find(|value| value.name == text),
            Values::Any | Values::Number => None,
        }
    }

    /// Whether this program knows the value.
    pub(super) fn is_known_value(&self, text: &str) -> bool {
        match self.values {
            Values::Of(_) => self.listed_value(text).is_some(),
            Values::Any | Values::Number => self.is_possible_value(text),
        }
    }
}
