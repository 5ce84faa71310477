//! A query of keys of one store of any kind, and its answers.

use std::num::NonZeroU64;

use dta_proto::control::{
    CounterAnswer, Epoch, KeyWriteAnswer, PathAnswer, Policy, QueryCounterRequest, QueryCounterResponse,
    QueryKeyWriteRequest, QueryKeyWriteResponse, QueryPathRequest, QueryPathResponse, QuerySeriesRequest,
    QuerySeriesResponse, QuerySketchRequest, QuerySketchResponse, SeriesEpoch, SketchAnswer,
    query_series_request, series_epoch,
};
use dta_proto::key::Key;
use dta_proto::wire::dta::Primitive;
use tonic::Status;

use crate::ClientError;
use crate::collector::Client;

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
    /// The estimate. `None`: the store does not have that epoch, or not all of the key's columns of it.
    SketchMerge {
        /// The epoch.
        epoch: u32,
    },
}

/// A moment that is asked about. Other moments than now are answered of stores with epochs.
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
pub struct Answers {
    /// One for each key, in the order of the keys, all of the question's kind.
    pub of_keys: Vec<KeyAnswer>,
    /// The generation of the store's memory; 0 if several collectors answered.
    pub generation: u64,
    /// The version of the collector's placement when it answered; 0 if it has none.
    pub placement: u64,
    /// The epoch that the answers are of; `None` if the store has no epochs. If several collectors answered, what their
    /// epochs have in common: [`Epoch::opened`] is the last of them, and the generation 0.
    pub epoch: Option<Epoch>,
}

/// A span of time, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first moment; 0 = all that is kept.
    pub since: u64,
    /// The first moment behind it; 0 = up to now.
    pub until: u64,
}

/// What keys had in each epoch of a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Answers of one epoch after the other, the oldest first. Several collectors have epochs of their own, each with
    /// its own keys: answers name theirs.
    pub epochs: Vec<Answers>,
    /// If later epochs are left: the [`Span::since`] for them. They are those that were opened from then on.
    pub next: Option<NonZeroU64>,
}

/// Why the message of a question is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// A key of another length.
    #[error("a key has {0} bytes, but must have 16")]
    KeyLength(usize),
    /// A series of nothing.
    #[error("which keys' series? `of` is missing: is the client of a later version?")]
    SeriesOfNothing,
    /// A series at one moment.
    #[error("a series is of a span of time: `at` must be 0, not {0}")]
    SeriesAt(u64),
    /// A policy that this version does not know.
    #[error("policy {0} is unknown")]
    Policy(i32),
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

    fn read(store: String, keys: &[Vec<u8>], kind: QuestionKind, at: u64) -> Result<Self, QuestionError> {
        let key =
            |key: &Vec<u8>| key[..].try_into().map(Key).map_err(|_| QuestionError::KeyLength(key.len()));
        let keys = keys.iter().map(key).collect::<Result<_, _>>()?;
        Ok(Self { store, keys, kind, at: at.into() })
    }
}

impl TryFrom<QueryKeyWriteRequest> for Question {
    type Error = QuestionError;

    fn try_from(request: QueryKeyWriteRequest) -> Result<Self, QuestionError> {
        let QueryKeyWriteRequest { store, keys, policy, at_least, at } = request;
        let policy = Policy::try_from(policy).map_err(|_| QuestionError::Policy(policy))?;
        Self::read(store, &keys, QuestionKind::KeyWrite { policy, at_least }, at)
    }
}

impl TryFrom<QueryPathRequest> for Question {
    type Error = QuestionError;

    fn try_from(QueryPathRequest { store, keys, at }: QueryPathRequest) -> Result<Self, QuestionError> {
        Self::read(store, &keys, QuestionKind::Postcarding, at)
    }
}

impl TryFrom<QueryCounterRequest> for Question {
    type Error = QuestionError;

    fn try_from(QueryCounterRequest { store, keys, at }: QueryCounterRequest) -> Result<Self, QuestionError> {
        Self::read(store, &keys, QuestionKind::KeyIncrement, at)
    }
}

impl TryFrom<QuerySketchRequest> for Question {
    type Error = QuestionError;

    fn try_from(request: QuerySketchRequest) -> Result<Self, QuestionError> {
        let QuerySketchRequest { store, keys, epoch, at } = request;
        Self::read(store, &keys, QuestionKind::SketchMerge { epoch }, at)
    }
}

/// What is asked, the call that asks it with the fields of its message, and its answers.
macro_rules! kinds {
    ($($kind:ident { $($given:ident),* } by $call:ident($request:ident { $($field:ident $(: $value:expr)?),* })
        -> $response:ident of $answer:ident;)*) => {
        impl QuestionKind {
            /// The primitive of the stores that are asked this.
            pub fn primitive(self) -> Primitive {
                match self {
                    $(Self::$kind { .. } => Primitive::$kind,)*
                }
            }

            /// What a store without anything says of a key, with all that it has to say left out.
            pub fn answer_of_none(self) -> KeyAnswer {
                match self {
                    $(Self::$kind { .. } => $answer::default().into(),)*
                }
            }
        }

        /// What a store of the kind says of one key.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum KeyAnswer {
            $($kind($answer),)*
        }

        impl KeyAnswer {
            /// The key.
            pub fn key(&self) -> &[u8] {
                match self {
                    $(Self::$kind(answer) => &answer.key,)*
                }
            }
        }

        impl From<Question> for query_series_request::Of {
            fn from(Question { store, keys, kind, at }: Question) -> Self {
                let (keys, at) = (keys.iter().map(|key| key.0.to_vec()).collect(), at.into());
                match kind {
                    $(QuestionKind::$kind { $($given),* } => {
                        Self::$kind($request { store, keys, at, $($field $(: $value)?),* })
                    })*
                }
            }
        }

        impl TryFrom<query_series_request::Of> for Question {
            type Error = QuestionError;

            fn try_from(of: query_series_request::Of) -> Result<Self, QuestionError> {
                match of {
                    $(query_series_request::Of::$kind(request) => request.try_into(),)*
                }
            }
        }

        impl From<series_epoch::Of> for Answers {
            fn from(of: series_epoch::Of) -> Self {
                match of {
                    $(series_epoch::Of::$kind(response) => response.into(),)*
                }
            }
        }

        impl QuestionKind {
            /// Answers to a question of this kind, as a message.
            fn message(self, answers: Answers) -> Result<series_epoch::Of, ClientError> {
                Ok(match self {
                    $(Self::$kind { .. } => series_epoch::Of::$kind(answers.try_into()?),)*
                })
            }
        }

        impl Client {
            /// Asks a running collector.
            pub(super) async fn ask_keys(&self, question: Question) -> Result<Answers, ClientError> {
                Ok(match query_series_request::Of::from(question) {
                    $(query_series_request::Of::$kind(request) => {
                        self.read(request, |mut to, it| async move { to.$call(it).await }).await?.into()
                    })*
                })
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
        }

        impl From<$response> for Answers {
            fn from($response { answers, generation, placement, epoch }: $response) -> Self {
                let of_keys = answers.into_iter().map(KeyAnswer::from).collect();
                Self { of_keys, generation, placement, epoch }
            }
        }

        impl TryFrom<Answers> for $response {
            type Error = ClientError;

            fn try_from(answers: Answers) -> Result<Self, ClientError> {
                let Answers { of_keys, generation, placement, epoch } = answers;
                let answers = of_keys.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
                Ok(Self { answers, generation, placement, epoch })
            }
        })*
    };
}

kinds! {
    KeyWrite { policy, at_least }
        by query_key_write(QueryKeyWriteRequest { policy: policy.into(), at_least })
        -> QueryKeyWriteResponse of KeyWriteAnswer;
    Postcarding {} by query_path(QueryPathRequest {}) -> QueryPathResponse of PathAnswer;
    KeyIncrement {} by query_counter(QueryCounterRequest {}) -> QueryCounterResponse of CounterAnswer;
    SketchMerge { epoch }
        by query_sketch(QuerySketchRequest { epoch })
        -> QuerySketchResponse of SketchAnswer;
}

/// The question of a request, and its span.
///
/// # Errors
/// The message is not valid.
pub fn series_question(request: QuerySeriesRequest) -> Result<(Question, Span), QuestionError> {
    let QuerySeriesRequest { since, until, of } = request;
    let question = Question::try_from(of.ok_or(QuestionError::SeriesOfNothing)?)?;
    match question.at {
        Moment::Now => Ok((question, Span { since, until })),
        Moment::UnixMillis(at) => Err(QuestionError::SeriesAt(at.get())),
    }
}

impl Series {
    /// As a message; `kind` is that of the question.
    ///
    /// # Errors
    /// Answers to a question of another kind.
    pub fn message(self, kind: QuestionKind) -> Result<QuerySeriesResponse, ClientError> {
        let epoch = |answers| -> Result<SeriesEpoch, ClientError> {
            Ok(SeriesEpoch { of: Some(kind.message(answers)?) })
        };
        let epochs = self.epochs.into_iter().map(epoch).collect::<Result<_, _>>()?;
        Ok(QuerySeriesResponse { epochs, next: self.next.map_or(0, NonZeroU64::get) })
    }
}

impl From<QuerySeriesResponse> for Series {
    fn from(QuerySeriesResponse { epochs, next }: QuerySeriesResponse) -> Self {
        let epochs = epochs.into_iter().filter_map(|epoch| epoch.of).map(Answers::from).collect();
        Self { epochs, next: NonZeroU64::new(next) }
    }
}
