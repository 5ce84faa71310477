//! Stores as messages.

use crate::control;
use crate::store::{Merge, SlotKeys, SpecError, StoreKind, StoreSpec, kinds};

/// A field as messages carry it.
trait MessageField: Sized {
    type InMessage;

    fn into_message(self) -> Self::InMessage;

    /// The field of a message; or, if it is invalid, what it holds and what it may hold.
    fn from_message(value: Self::InMessage) -> Result<Self, (String, &'static str)>;
}

/// Fields that have the same type in messages.
macro_rules! plain {
    ($($number:ty),*) => {
        $(impl MessageField for $number {
            type InMessage = $number;

            fn into_message(self) -> $number {
                self
            }

            fn from_message(value: $number) -> Result<$number, (String, &'static str)> {
                Ok(value)
            }
        })*
    };
}

plain!(u64, u32, bool);

/// Smaller numbers have 32 bits in messages.
macro_rules! narrowed {
    ($($number:ty, $must:literal);*) => {
        $(impl MessageField for $number {
            type InMessage = u32;

            fn into_message(self) -> u32 {
                self.into()
            }

            fn from_message(value: u32) -> Result<$number, (String, &'static str)> {
                <$number>::try_from(value).map_err(|_| (value.to_string(), $must))
            }
        })*
    };
}

narrowed!(u8, "a number below 256"; u16, "a number below 65536");

impl MessageField for SlotKeys {
    type InMessage = i32;

    fn into_message(self) -> i32 {
        match self {
            SlotKeys::Hashed => control::SlotKeys::Hashed,
            SlotKeys::Inline => control::SlotKeys::Inline,
        }
        .into()
    }

    fn from_message(value: i32) -> Result<SlotKeys, (String, &'static str)> {
        match control::SlotKeys::try_from(value) {
            Ok(control::SlotKeys::Hashed) => Ok(SlotKeys::Hashed),
            Ok(control::SlotKeys::Inline) => Ok(SlotKeys::Inline),
            Err(_) => Err((value.to_string(), "hashed or inline")),
        }
    }
}

impl MessageField for Merge {
    type InMessage = i32;

    fn into_message(self) -> i32 {
        match self {
            Merge::Sum => control::Merge::Sum,
            Merge::Max => control::Merge::Max,
            Merge::Or => control::Merge::Or,
        }
        .into()
    }

    fn from_message(value: i32) -> Result<Merge, (String, &'static str)> {
        match control::Merge::try_from(value) {
            Ok(control::Merge::Sum) => Ok(Merge::Sum),
            Ok(control::Merge::Max) => Ok(Merge::Max),
            Ok(control::Merge::Or) => Ok(Merge::Or),
            Err(_) => Err((value.to_string(), "sum, max or or")),
        }
    }
}

macro_rules! messages_of_kinds {
    ($($kind:ident in $message:ident { $($field:ident),* })*) => {
        impl From<&StoreSpec> for control::Store {
            fn from(spec: &StoreSpec) -> Self {
                use control::store::Kind;
                let kind = match spec.kind {
                    $(StoreKind::$kind { $($field),* } => {
                        Kind::$kind(control::$message { $($field: $field.into_message()),* })
                    })*
                };
                control::Store { id: spec.id.into(), name: spec.name.clone(), kind: Some(kind) }
            }
        }

        /// The kind of a store, its numbers within their types.
        fn kind_of(store: &control::Store) -> Result<StoreKind, SpecError> {
            use control::store::Kind;
            let fail = |field, (value, must)| SpecError { store: store.name.clone(), field, value, must };
            let missing = || fail("kind", ("missing".to_owned(), "one that this version knows"));
            Ok(match store.kind.as_ref().ok_or_else(missing)? {
                $(Kind::$kind(message) => StoreKind::$kind {
                    $($field: MessageField::from_message(message.$field)
                        .map_err(|fault| fail(stringify!($field), fault))?,)*
                },)*
            })
        }
    };
}

kinds!(messages_of_kinds);

impl TryFrom<&control::Store> for StoreSpec {
    type Error = SpecError;

    /// Checks as [`StoreSpec::validate`] does.
    fn try_from(store: &control::Store) -> Result<Self, SpecError> {
        let mut kind = kind_of(store)?;
        if let StoreKind::KeyIncrement { replicas, .. } = &mut kind {
            *replicas = (*replicas).max(1);
        }
        let id = u16::try_from(store.id).map_err(|_| SpecError {
            store: store.name.clone(),
            field: "id",
            value: store.id.to_string(),
            must: "a number below 65536",
        })?;
        let spec = StoreSpec { id, name: store.name.clone(), kind };
        spec.validate()?;
        Ok(spec)
    }
}
