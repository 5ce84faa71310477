//! A query of keys of one store, of any kind, and its answers.

use std::num::NonZeroU64;

use dta_proto::control::{
    self, CounterAnswer, EarlierEpoch, Epoch, KeyIncrementQuery, KeyWriteAnswer, KeyWriteQuery, PathAnswer,
    Policy, PostcardingQuery, QueryRequest, QueryResponse, QuerySeriesRequest, QuerySeriesResponse,
    SketchAnswer, SketchMergeQuery, key_answer, query_request,
};
use dta_proto::hex_groups;
use dta_proto::key::Key;
use dta_proto::wire::dta::Primitive;
use tonic::Status;

use crate::ClientError;

/// A query of some keys of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The store, by name or id; empty = the only one of the primitive, not counting those for INT.
    pub store: String,
    /// The keys, at most [`MAX_KEYS`](dta_proto::control::MAX_KEYS).
    pub keys: Vec<Key>,
    /// What to query.
    pub kind: QuestionKind,
    /// The time of the state to query.
    pub at: Moment,
}

/// What to query, which implies the primitive of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionKind {
    /// The last value.
    KeyWrite {
        /// How to choose among copies.
        policy: Policy,
        /// Copies that must agree, for [`Policy::AtLeast`].
        at_least: u32,
    },
    /// The path.
    Postcarding,
    /// The count.
    KeyIncrement,
    /// The estimate. `None`: the store does not have that epoch, or lacks some of its columns for the key.
    SketchMerge {
        /// The epoch.
        epoch: u32,
    },
}

/// The moment that a question is about. Only stores with epochs answer for moments other than now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    /// The time of the answer.
    #[default]
    Now,
    /// Milliseconds since 1970.
    UnixMillis(NonZeroU64),
}

impl From<u64> for Moment {
    fn from(at: u64) -> Self {
        NonZeroU64::new(at).map_or(Self::Now, Self::UnixMillis)
    }
}

impl From<Moment> for u64 {
    fn from(at: Moment) -> u64 {
        match at {
            Moment::Now => 0,
            Moment::UnixMillis(at) => at.get(),
        }
    }
}

/// The answers to a [`Question`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryAnswers {
    /// One for each key, in the same order, all of the question's kind.
    pub of_keys: Vec<KeyAnswer>,
    /// The generation of the store's memory; 0 if several collectors answered.
    pub generation: u64,
    /// The version of the collector's placement when it answered; 0 if it has none.
    pub placement: u64,
    /// The epoch that the answers are from; `None` if the store has no epochs. If several collectors answered, what
    /// their epochs have in common: [`Epoch::opened`] is the latest of theirs, and the generation is 0.
    pub epoch: Option<Epoch>,
}

/// A span of time, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first moment; 0 = all that is kept.
    pub since: u64,
    /// The first moment after it; 0 = up to now.
    pub until: u64,
}

/// What keys had in each epoch of a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The answers of one epoch after another, oldest first. Several collectors have separate epochs, each with its own
    /// keys, which the answers name.
    pub epochs: Vec<QueryAnswers>,
    /// If later epochs are left: the [`Span::since`] to ask for them, all of which were opened from then on.
    pub next: Option<NonZeroU64>,
}

/// Why the message of a question is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// A key of another length.
    #[error("a key has {0} bytes, but must have 16")]
    KeyLength(usize),
    /// No query kind that this version knows.
    #[error("unknown or missing query kind: is the client of another version?")]
    Nothing,
    /// A series was asked for at one moment.
    #[error("a series covers a span of time: `at` must be 0, not {0}")]
    SeriesAt(u64),
    /// A policy that this version does not know.
    #[error("policy {0} is unknown")]
    Policy(i32),
}

/// More copies must agree than a key has in the store, or none: the refusal of [`Policy::AtLeast`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`at_least` is {at_least}, but this store has {copies} copies: ask for 1 to {copies}")]
pub struct AtLeastError {
    /// What was asked for.
    pub at_least: u32,
    /// Copies per key of the store.
    pub copies: u8,
}

impl From<QuestionError> for Status {
    fn from(error: QuestionError) -> Self {
        Status::invalid_argument(error.to_string())
    }
}

impl Question {
    /// A question about now.
    pub fn now(store: impl Into<String>, keys: impl Into<Vec<Key>>, kind: QuestionKind) -> Self {
        Self { store: store.into(), keys: keys.into(), kind, at: Moment::Now }
    }
}

impl TryFrom<QueryRequest> for Question {
    type Error = QuestionError;

    fn try_from(QueryRequest { store, keys, at, of }: QueryRequest) -> Result<Self, QuestionError> {
        let key = |key: Vec<u8>| key[..].try_into().map(Key).map_err(|_| QuestionError::KeyLength(key.len()));
        let keys = keys.into_iter().map(key).collect::<Result<_, _>>()?;
        Ok(Self { store, keys, kind: of.ok_or(QuestionError::Nothing)?.try_into()?, at: at.into() })
    }
}

impl From<Question> for QueryRequest {
    fn from(Question { store, keys, kind, at }: Question) -> Self {
        let keys = keys.iter().map(|key| key.0.to_vec()).collect();
        Self { store, keys, at: at.into(), of: Some(kind.into()) }
    }
}

impl TryFrom<query_request::Of> for QuestionKind {
    type Error = QuestionError;

    fn try_from(of: query_request::Of) -> Result<Self, QuestionError> {
        Ok(match of {
            query_request::Of::KeyWrite(KeyWriteQuery { policy, at_least }) => {
                let policy = Policy::try_from(policy).map_err(|_| QuestionError::Policy(policy))?;
                Self::KeyWrite { policy, at_least }
            }
            query_request::Of::Postcarding(PostcardingQuery {}) => Self::Postcarding,
            query_request::Of::KeyIncrement(KeyIncrementQuery {}) => Self::KeyIncrement,
            query_request::Of::SketchMerge(SketchMergeQuery { epoch }) => Self::SketchMerge { epoch },
        })
    }
}

impl From<QuestionKind> for query_request::Of {
    fn from(kind: QuestionKind) -> Self {
        match kind {
            QuestionKind::KeyWrite { policy, at_least } => {
                Self::KeyWrite(KeyWriteQuery { policy: policy.into(), at_least })
            }
            QuestionKind::Postcarding => Self::Postcarding(PostcardingQuery {}),
            QuestionKind::KeyIncrement => Self::KeyIncrement(KeyIncrementQuery {}),
            QuestionKind::SketchMerge { epoch } => Self::SketchMerge(SketchMergeQuery { epoch }),
        }
    }
}

impl QuestionKind {
    /// The usual question to the stores of a primitive, for sketches in `epoch`. `None` for lists, which have no keys.
    pub fn default_for(primitive: Primitive, epoch: u32) -> Option<Self> {
        Some(match primitive {
            Primitive::KeyWrite => Self::KeyWrite { policy: Policy::First, at_least: 0 },
            Primitive::Postcarding => Self::Postcarding,
            Primitive::KeyIncrement => Self::KeyIncrement,
            Primitive::SketchMerge => Self::SketchMerge { epoch },
            Primitive::Append => return None,
        })
    }
}

impl KeyAnswer {
    /// How much the answer says about the key, to compare answers of one kind; 0 = nothing.
    pub(crate) fn completeness(&self) -> u64 {
        match self {
            Self::KeyWrite(answer) => u64::from(answer.value.is_some()),
            Self::Postcarding(answer) => {
                let hops = answer.present.iter().filter(|is| **is).count() as u64;
                u64::from(answer.found) + hops + u64::from(answer.complete)
            }
            Self::KeyIncrement(answer) => answer.value,
            Self::SketchMerge(answer) => u64::from(answer.estimate.is_some()) + u64::from(answer.merged),
        }
    }

    /// Whether the store has nothing for the key.
    pub fn is_absent(&self) -> bool {
        match self {
            // Copies that do not meet the policy still count.
            Self::KeyWrite(answer) => answer.value.is_none() && answer.agreeing == 0,
            Self::Postcarding(answer) => !answer.found,
            Self::KeyIncrement(answer) => answer.value == 0,
            Self::SketchMerge(answer) => answer.estimate.is_none(),
        }
    }

    /// The earlier epoch that the answer is from; `None` if it is from the one asked about.
    pub fn earlier_epoch(&self) -> Option<EarlierEpoch> {
        match self {
            Self::KeyWrite(answer) => answer.earlier,
            Self::Postcarding(answer) => answer.earlier,
            Self::KeyIncrement(_) | Self::SketchMerge(_) => None,
        }
    }

    /// The same answer, marked as from an earlier epoch. Counters and sketches are never marked: their memory goes on.
    pub fn with_earlier_epoch(self, epoch: EarlierEpoch) -> Self {
        match self {
            Self::KeyWrite(answer) => KeyWriteAnswer { earlier: Some(epoch), ..answer }.into(),
            Self::Postcarding(answer) => PathAnswer { earlier: Some(epoch), ..answer }.into(),
            goes_on @ (Self::KeyIncrement(_) | Self::SketchMerge(_)) => goes_on,
        }
    }

    /// The answer as people read it, in a line or two.
    pub fn describe_lines(&self) -> Vec<String> {
        match self {
            Self::KeyWrite(KeyWriteAnswer { value, agreeing, differing, copies, .. }) => {
                let value = value.as_deref().map_or_else(|| "absent".into(), hex_groups);
                vec![value, format!("{agreeing} of {copies} copies agree, {differing} differ")]
            }
            Self::Postcarding(PathAnswer { found: false, .. }) => vec!["absent".into()],
            Self::Postcarding(PathAnswer { hops, present, complete, agreeing, copies, .. }) => {
                let hop = |(hop, present): (&u32, &bool)| if *present { hop.to_string() } else { "?".into() };
                let hops: Vec<String> = hops.iter().zip(present).map(hop).collect();
                let known = if *complete { "complete" } else { "partial" };
                vec![hops.join(" → "), format!("{known}, {agreeing} of {copies} copies")]
            }
            Self::KeyIncrement(CounterAnswer { value, .. }) => vec![value.to_string()],
            Self::SketchMerge(SketchAnswer { estimate: Some(n), merged, expected, .. }) => {
                vec![n.to_string(), format!("{merged} of {expected} reporters merged")]
            }
            Self::SketchMerge(_) => vec!["unknown".into(), "the columns hold another epoch".into()],
        }
    }
}

/// Defines the answer to each kind of question.
macro_rules! kinds {
    ($($kind:ident -> $answer:ident;)*) => {
        impl QuestionKind {
            /// The primitive of the stores that answer this kind of question.
            pub fn primitive(self) -> Primitive {
                match self {
                    $(Self::$kind { .. } => Primitive::$kind,)*
                }
            }

            /// The answer of an empty store about a key.
            pub fn answer_of_none(self) -> KeyAnswer {
                match self {
                    $(Self::$kind { .. } => $answer::default().into(),)*
                }
            }
        }

        /// What a store says about one key.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum KeyAnswer {
            $($kind($answer),)*
        }

        impl KeyAnswer {
            /// The primitive of the store.
            pub fn primitive(&self) -> Primitive {
                match self {
                    $(Self::$kind(_) => Primitive::$kind,)*
                }
            }

            /// The key.
            pub fn key(&self) -> &[u8] {
                match self {
                    $(Self::$kind(answer) => &answer.key,)*
                }
            }
        }

        impl From<key_answer::Of> for KeyAnswer {
            fn from(of: key_answer::Of) -> Self {
                match of {
                    $(key_answer::Of::$kind(answer) => Self::$kind(answer),)*
                }
            }
        }

        impl From<KeyAnswer> for key_answer::Of {
            fn from(answer: KeyAnswer) -> Self {
                match answer {
                    $(KeyAnswer::$kind(answer) => Self::$kind(answer),)*
                }
            }
        }

        $(impl From<$answer> for KeyAnswer {
            fn from(answer: $answer) -> Self {
                Self::$kind(answer)
            }
        }

        impl TryFrom<KeyAnswer> for $answer {
            type Error = ClientError;

            fn try_from(answer: KeyAnswer) -> Result<Self, ClientError> {
                match answer {
                    KeyAnswer::$kind(answer) => Ok(answer),
                    _ => Err(Status::internal("the collector answered a different question").into()),
                }
            }
        })*
    };
}

kinds! {
    KeyWrite -> KeyWriteAnswer;
    Postcarding -> PathAnswer;
    KeyIncrement -> CounterAnswer;
    SketchMerge -> SketchAnswer;
}

impl TryFrom<QueryResponse> for QueryAnswers {
    type Error = ClientError;

    fn try_from(response: QueryResponse) -> Result<Self, ClientError> {
        let QueryResponse { answers, generation, placement, epoch } = response;
        let unknown = || Status::internal("unknown answer from the collector: does it have a later version?");
        let answer = |answer: control::KeyAnswer| answer.of.map(KeyAnswer::from).ok_or_else(unknown);
        let of_keys = answers.into_iter().map(answer).collect::<Result<_, _>>()?;
        Ok(Self { of_keys, generation, placement, epoch })
    }
}

impl From<QueryAnswers> for QueryResponse {
    fn from(QueryAnswers { of_keys, generation, placement, epoch }: QueryAnswers) -> Self {
        let answer = |answer: KeyAnswer| control::KeyAnswer { of: Some(answer.into()) };
        Self { answers: of_keys.into_iter().map(answer).collect(), generation, placement, epoch }
    }
}

/// The question in a request, and its span.
///
/// # Errors
/// The message is not valid.
pub fn series_question(request: QuerySeriesRequest) -> Result<(Question, Span), QuestionError> {
    let QuerySeriesRequest { since, until, query } = request;
    let question = Question::try_from(query.ok_or(QuestionError::Nothing)?)?;
    match question.at {
        Moment::Now => Ok((question, Span { since, until })),
        Moment::UnixMillis(at) => Err(QuestionError::SeriesAt(at.get())),
    }
}

impl From<Series> for QuerySeriesResponse {
    fn from(Series { epochs, next }: Series) -> Self {
        let epochs = epochs.into_iter().map(QueryResponse::from).collect();
        Self { epochs, next: next.map_or(0, NonZeroU64::get) }
    }
}

impl TryFrom<QuerySeriesResponse> for Series {
    type Error = ClientError;

    fn try_from(QuerySeriesResponse { epochs, next }: QuerySeriesResponse) -> Result<Self, ClientError> {
        let epochs = epochs.into_iter().map(QueryAnswers::try_from).collect::<Result<_, _>>()?;
        Ok(Self { epochs, next: NonZeroU64::new(next) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_primitive_with_keys_has_a_question_and_an_empty_answer() {
        for primitive in Primitive::ALL {
            let kind = QuestionKind::default_for(primitive, 7);
            let is_asked = primitive.description().query.is_some();
            assert_eq!(kind.map(QuestionKind::primitive), is_asked.then_some(primitive));
            let Some(kind) = kind else { continue };
            assert_eq!(QuestionKind::try_from(query_request::Of::from(kind)), Ok(kind));
            let nothing = kind.answer_of_none();
            assert_eq!((nothing.primitive(), nothing.completeness()), (primitive, 0));
        }
    }

    #[test]
    fn answers_are_a_line_or_two() {
        let key = vec![1; 16];
        let value = KeyWriteAnswer {
            key: key.clone(),
            value: Some(vec![1, 2, 3, 4, 0xab, 0, 0, 0]),
            agreeing: 1,
            differing: 1,
            copies: 2,
            earlier: None,
        };
        let path = PathAnswer {
            key: key.clone(),
            found: true,
            hops: vec![5, 0, 9],
            present: vec![true, false, true],
            agreeing: 1,
            copies: 2,
            ..PathAnswer::default()
        };
        let sketch = SketchAnswer { key: key.clone(), estimate: Some(8), merged: 2, expected: 3 };
        let unknown = SketchAnswer { estimate: None, ..sketch.clone() };
        for (answer, words) in [
            (KeyAnswer::from(value), &["01020304 ab000000", "1 of 2 copies agree, 1 differ"][..]),
            (KeyWriteAnswer::default().into(), &["absent", "0 of 0 copies agree, 0 differ"]),
            (path.into(), &["5 → ? → 9", "partial, 1 of 2 copies"]),
            (PathAnswer::default().into(), &["absent"]),
            (CounterAnswer { key, value: 12, by_colour: vec![] }.into(), &["12"]),
            (sketch.into(), &["8", "2 of 3 reporters merged"]),
            (unknown.into(), &["unknown", "the columns hold another epoch"]),
        ] {
            assert_eq!(answer.describe_lines(), words);
        }
    }
}
