//! The definition of a counter, and how its names are built and parsed.

use super::Variable;

/// What a counter, or a family of counters whose names differ in variable parts, counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its dotted name. A part in capitals is a [`Variable`]; a part in brackets is optional.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Whether it may decrease.
    pub kind: CounterKind,
    /// Its place in its node's flow.
    pub step: CounterStep,
    /// Whether it only breaks another counter down, such as by primitive.
    pub detail: bool,
    /// Its meaning in words.
    pub meaning: &'static str,
    /// The variable parts of the name, left to right; at most [`MAX_VARIABLES`].
    pub variables: &'static [Variable],
}

/// The most variable parts of a name.
pub const MAX_VARIABLES: usize = 2;

/// The counters of one table of `docs/counters.md`.
#[derive(Debug)]
pub struct CounterTable {
    /// The word that selects it in the document.
    pub title: &'static str,
    /// Its counters, in the order in which they are shown.
    pub definitions: &'static [&'static Definition],
}

/// Whether a counter may decrease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Only increases, from 0 when its node started. Sums over nodes and restarts are meaningful.
    Counter,
    /// A node's current number. When the node ends, it is added to `becomes`.
    Held {
        /// A counter with the same variable parts.
        becomes: &'static Definition,
    },
    /// A node's current number, dropped when the node ends.
    Now,
    /// A position in a sequence. Sums are meaningless.
    Position,
}

impl CounterKind {
    /// Whether the counter may decrease.
    pub const fn can_decrease(self) -> bool {
        !matches!(self, CounterKind::Counter)
    }
}

crate::named! {
    /// The unit of a counter.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Unit {
        /// Reports.
        Reports: "reports",
        /// UDP datagrams.
        Datagrams: "datagrams",
        /// RoCEv2 frames that are sent.
        Frames: "frames",
        /// Packets that a NIC or link receives or sends.
        Packets: "packets",
        /// Bytes, of frames from the IPv4 header on.
        Bytes: "bytes",
        /// RDMA operations: writes and atomics.
        Operations: "operations",
        /// Sequence numbers of reports.
        Sequences: "sequences",
        /// NACK datagrams.
        Nacks: "NACKs",
        /// Rows of postcards, or of histories.
        Rows: "rows",
        /// ACKs, NAKs and other answers of a NIC.
        Answers: "answers",
        /// Immediates of writes.
        Immediates: "immediates",
        /// Queue pairs.
        QueuePairs: "queue pairs",
        /// Sessions, and calls about them.
        Sessions: "sessions",
        /// Epochs of stores.
        Epochs: "epochs",
        /// Nodes whose counters a translator hands in.
        Nodes: "nodes",
        /// Keys of queries.
        Keys: "keys",
        /// Entries of append lists.
        Entries: "entries",
        /// Batches of append lists.
        Batches: "batches",
        /// Points of time series, or lines of JSON, that are exported.
        Points: "points",
        /// gRPC connections.
        Connections: "connections",
        /// Occurrences.
        Times: "times",
        /// As the driver of an RDMA device defines it.
        Kernel: "the driver's",
    }
}

/// A counter's place in its node's flow: received, accepted, or what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CounterStep {
    /// Arrived.
    In,
    /// Rejected.
    Dropped,
    /// Accepted.
    Accepted,
    /// Accepted, but replaced before it left.
    Superseded,
    /// Accepted, and waiting.
    Held,
    /// Accepted, but discarded before it left.
    Discarded,
    /// Turned into operations.
    Emitted,
    /// Operations.
    Operations,
    /// Frames.
    Frames,
    /// Left or was about to, and is known to be lost.
    Lost,
    /// Executed in memory.
    Executed,
    /// Seen before.
    Duplicate,
    /// Answered.
    Answered,
    /// None of the above.
    Beside,
}

impl CounterStep {
    /// Whether this is a fate of what came in, so that its share of the input is meaningful.
    pub const fn is_input_share(self) -> bool {
        !matches!(
            self,
            CounterStep::In
                | CounterStep::Operations
                | CounterStep::Frames
                | CounterStep::Answered
                | CounterStep::Beside
        )
    }
}

/// A recognised name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedCounter<'a> {
    /// What it counts.
    pub definition: &'static Definition,
    /// Its variable parts, in the order of [`Definition::variables`]; empty where one is missing or unused.
    pub values: [&'a str; MAX_VARIABLES],
    /// Whether this program knows all of these values. Others come from a newer one.
    pub known: bool,
}

impl<'a> ParsedCounter<'a> {
    /// The variable parts and their values, for labels for instance.
    pub fn variables(&self) -> impl Iterator<Item = (&'static Variable, &'a str)> {
        self.definition.variables.iter().zip(self.values)
    }

    /// The value of the last variable part: a reason, a cause; empty if there is none.
    pub fn last_value(&self) -> &'a str {
        self.definition.variables.len().checked_sub(1).map_or("", |last| self.values[last])
    }

    /// The meaning of this particular counter: that of its last variable part, if it has one of its own.
    pub fn specific_meaning(&self) -> &'static str {
        let value =
            self.definition.variables.last().and_then(|variable| variable.listed_value(self.last_value()));
        value.map(|value| value.meaning).filter(|words| !words.is_empty()).unwrap_or(self.definition.meaning)
    }

    /// The name of another counter with the same variable parts.
    pub fn sibling_name(&self, other: &Definition) -> String {
        other.format_name(&self.values[..other.variables.len()])
    }
}

impl Definition {
    /// A counter that only increases.
    pub(super) const fn new(
        name: &'static str,
        unit: Unit,
        step: CounterStep,
        meaning: &'static str,
    ) -> Definition {
        Definition { name, unit, kind: CounterKind::Counter, step, detail: false, meaning, variables: &[] }
    }

    /// Adds variable parts.
    pub(super) const fn with_variables(self, variables: &'static [Variable]) -> Definition {
        assert!(variables.len() <= MAX_VARIABLES);
        Definition { variables, ..self }
    }

    /// Sets the kind, for a counter that may decrease.
    pub(super) const fn with_kind(self, kind: CounterKind) -> Definition {
        Definition { kind, ..self }
    }

    /// Marks a counter that only breaks another one down.
    pub(super) const fn as_detail(self) -> Definition {
        Definition { detail: true, ..self }
    }

    /// The name with these values for its variables, in order. An empty value is left out.
    pub fn format_name(&self, values: &[&str]) -> String {
        debug_assert_eq!(values.len(), self.variables.len(), "{}", self.name);
        let mut values = values.iter();
        let mut name = String::with_capacity(self.name.len() + 16);
        for part in NameParts(Some(self.name)) {
            let text = if part.variable { values.next().copied().unwrap_or_default() } else { part.text };
            if !text.is_empty() {
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(text);
            }
        }
        name
    }

    /// Parses a name; `None` if it does not match this definition.
    pub fn parse_name<'a>(&'static self, name: &'a str) -> Option<ParsedCounter<'a>> {
        let mut values = [""; MAX_VARIABLES];
        let mut known = true;
        let (mut at, mut rest) = (0, Some(name));
        let mut parts = NameParts(Some(self.name));
        while let Some(part) = parts.next() {
            let (first, after) = match rest?.split_once('.') {
                // The last part may contain dots, such as `malformed.length`.
                Some(_) if part.variable && parts.0.is_none() => (rest?, None),
                Some((first, after)) => (first, Some(after)),
                None => (rest?, None),
            };
            if !part.variable {
                if first != part.text {
                    return None;
                }
                rest = after;
                continue;
            }
            let variable = &self.variables[at];
            at += 1;
            if !variable.is_possible_value(first) {
                if part.optional {
                    continue;
                }
                return None;
            }
            values[at - 1] = first;
            known &= variable.is_known_value(first);
            rest = after;
        }
        rest.is_none().then_some(ParsedCounter { definition: self, values, known })
    }
}

/// One part of a definition's name, between dots.
struct NamePart {
    text: &'static str,
    variable: bool,
    optional: bool,
}

/// Splits off the parts of the rest of a definition's name.
struct NameParts(Option<&'static str>);

impl Iterator for NameParts {
    type Item = NamePart;

    fn next(&mut self) -> Option<NamePart> {
        let rest = self.0?;
        let (first, after) = rest.split_once('.').map_or((rest, None), |(first, after)| (first, Some(after)));
        self.0 = after;
        // `a.[B.]c`: the brackets hold the dot after an optional part.
        let first = first.trim_start_matches(']');
        let (text, optional) = first.strip_prefix('[').map_or((first, false), |text| (text, true));
        Some(NamePart { text, variable: text.bytes().all(|byte| byte.is_ascii_uppercase()), optional })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Values, VariableValue};
    use super::*;

    const KIND: Variable =
        Variable { word: "KIND", values: Values::Of(&[VariableValue { name: "a", meaning: "of a" }]) };
    const NUMBER: Variable = Variable { word: "NUMBER", values: Values::Number };
    static PLAIN: Definition = Definition::new("x.y", Unit::Times, CounterStep::Beside, "plain");
    static REASON: Definition =
        Definition::new("x.KIND", Unit::Times, CounterStep::Beside, "any").with_variables(&[KIND]);
    static OPTIONAL: Definition = Definition::new("x.[NUMBER.]KIND.z", Unit::Times, CounterStep::Beside, "")
        .with_variables(&[NUMBER, KIND]);

    #[test]
    fn names_that_are_made_are_found_again() {
        for (definition, values, name) in [
            (&PLAIN, &[][..], "x.y"),
            (&REASON, &["a"], "x.a"),
            (&REASON, &["new.er"], "x.new.er"),
            (&OPTIONAL, &["1", "a"], "x.1.a.z"),
            (&OPTIONAL, &["", "a"], "x.a.z"),
        ] {
            assert_eq!(definition.format_name(values), name);
            let found = definition.parse_name(name).unwrap();
            assert_eq!(&found.values[..values.len()], values);
            assert_eq!(found.known, !name.contains("new"), "{name}");
            assert_eq!(found.sibling_name(definition), name);
        }
        assert_eq!(
            (
                REASON.parse_name("x.a").unwrap().specific_meaning(),
                REASON.parse_name("x.b").unwrap().specific_meaning()
            ),
            ("of a", "any")
        );
    }

    #[test]
    fn other_names_are_not() {
        for name in ["", "x", "x.", "x.y.z", "xx.y", "x.y."] {
            assert_eq!(PLAIN.parse_name(name), None, "{name}");
        }
        for name in ["", "x", "x.", "y.a"] {
            assert_eq!(REASON.parse_name(name), None, "{name}");
        }
        for name in ["x.z", "x..z", "x.1.z.z.z", "x.1.a", "x.b.a.z"] {
            assert_eq!(OPTIONAL.parse_name(name), None, "{name}");
        }
    }
}
