//! Rows by the names of the P4 program: a struct for each table's key and for each action. The same lines
//! describe them to the check against the compiled program ([`Schema::check_required`](super::schema::Schema::check_required)),
//! which finds wrong names, orders and widths before anything is written.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use dta_proto::prefix::Prefix;
use dta_proto::program::Mac;

use super::schema::{MatchKind, UsedAction, UsedTable, all_ones};
use super::tables::Match;
use crate::matches::{Masked, PortRange, Protocol};

pub(super) trait Key {
    /// The table, with all actions used.
    const TABLE: UsedTable;

    /// The key, in the order of the table's fields.
    fn into_matches(self) -> Vec<Match>;
}

pub(super) trait RowAction: Sized {
    /// Its name and its parameters.
    const USED: UsedAction;

    /// The parameters, in their order.
    fn into_params(self) -> Vec<u128>;

    /// The action from its parameters; `None` for another action's.
    fn from_params(params: &[u128]) -> Option<Self>;
}

/// An action allowed in rows of this table.
pub(super) trait ActionOf<K>: RowAction {}

pub(super) trait Number: Sized {
    fn into_number(self) -> u128;
    fn from_number(number: u128) -> Option<Self>;
}

/// A key field of some width.
pub(super) trait KeyField {
    const KIND: MatchKind;
    fn into_match(self, width: u16) -> Match;
}

macro_rules! numbers {
    ($($type:ty: $number:expr, $of:expr;)*) => {$(
        impl Number for $type {
            fn into_number(self) -> u128 {
                let number: fn($type) -> u128 = $number;
                number(self)
            }

            fn from_number(number: u128) -> Option<$type> {
                let of: fn(u128) -> Option<$type> = $of;
                of(number)
            }
        }

        impl KeyField for $type {
            const KIND: MatchKind = MatchKind::Exact;

            fn into_match(self, _: u16) -> Match {
                Match::Exact(self.into_number())
            }
        }
    )*};
}

numbers! {
    u8: u128::from, |number| number.try_into().ok();
    u16: u128::from, |number| number.try_into().ok();
    u32: u128::from, |number| number.try_into().ok();
    u64: u128::from, |number| number.try_into().ok();
    bool: u128::from, |number| (number <= 1).then_some(number == 1);
    Protocol: |protocol| protocol.0.into(), |number| Some(Protocol(number.try_into().ok()?));
    Ipv4Addr: |address| address.to_bits().into(), |number| Some(Ipv4Addr::from_bits(number.try_into().ok()?));
    Mac: |mac| mac.0.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)), |number| {
        let [high @ .., a, b, c, d, e, f] = number.to_be_bytes();
        (high == [0; 10]).then_some(Mac([a, b, c, d, e, f]))
    };
}

/// `None` matches everything.
impl<T: Number> KeyField for Option<T> {
    const KIND: MatchKind = MatchKind::Ternary;

    fn into_match(self, width: u16) -> Match {
        let one = |of: T| Match::Masked { value: of.into_number(), mask: all_ones(width) };
        self.map_or(Match::Masked { value: 0, mask: 0 }, one)
    }
}

impl KeyField for Masked {
    const KIND: MatchKind = MatchKind::Ternary;

    fn into_match(self, _: u16) -> Match {
        Match::Masked { value: self.value.into(), mask: self.mask.into() }
    }
}

/// 32-bit numbers with these leading bits.
pub(crate) struct FirstBits {
    pub(crate) value: u32,
    pub(crate) len: u16,
}

impl KeyField for FirstBits {
    const KIND: MatchKind = MatchKind::Prefix;

    fn into_match(self, _: u16) -> Match {
        Match::Prefix { value: self.value.into(), len: self.len }
    }
}

impl KeyField for Prefix {
    const KIND: MatchKind = MatchKind::Prefix;

    fn into_match(self, width: u16) -> Match {
        FirstBits { value: Masked::from(self).value, len: self.length_in_bits().into() }.into_match(width)
    }
}

impl<T: Number> KeyField for RangeInclusive<T> {
    const KIND: MatchKind = MatchKind::Range;

    fn into_match(self, _: u16) -> Match {
        let (low, high) = self.into_inner();
        Match::Range { low: low.into_number(), high: high.into_number() }
    }
}

impl KeyField for PortRange {
    const KIND: MatchKind = MatchKind::Range;

    fn into_match(self, width: u16) -> Match {
        (self.low..=self.high).into_match(width)
    }
}

/// Declares actions: a struct for each, with its name in the program, and its parameters in order with their
/// widths.
macro_rules! actions {
    ($($(#[$doc:meta])* $action:ident = $name:literal { $($param:ident: $type:ty = $bits:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        pub(crate) struct $action {
            $(pub(crate) $param: $type),*
        }

        impl $crate::row::RowAction for $action {
            const USED: $crate::schema::UsedAction = $crate::schema::UsedAction {
                name: $name,
                params: &[$((stringify!($param), $bits)),*],
            };

            fn into_params(self) -> Vec<u128> {
                vec![$($crate::row::Number::into_number(self.$param)),*]
            }

            fn from_params(params: &[u128]) -> Option<$action> {
                let [$($param),*] = *params else { return None };
                Some($action { $($param: $crate::row::Number::from_number($param)?),* })
            }
        }
    )*};
}

/// Declares tables: a struct for each key, with the table's name in the program, the fields in order with
/// their widths, and the actions used; and a constant with all of them.
macro_rules! tables {
    (
        $all:ident:
        $($(#[$doc:meta])* $table:ident = $name:literal { $($field:ident: $type:ty = $bits:literal),* $(,)? }
            => [$($action:ident),*])*
    ) => {
        const $all: &[$crate::schema::UsedTable] =
            &[$(<$table as $crate::row::Key>::TABLE),*];
        $(
            $(#[$doc])*
            pub(crate) struct $table {
                $(pub(crate) $field: $type),*
            }

            impl $crate::row::Key for $table {
                const TABLE: $crate::schema::UsedTable = $crate::schema::UsedTable {
                    name: $name,
                    key: &[$((stringify!($field), <$type as $crate::row::KeyField>::KIND, $bits)),*],
                    actions: &[$(<$action as $crate::row::RowAction>::USED),*],
                };

                fn into_matches(self) -> Vec<$crate::tables::Match> {
                    vec![$($crate::row::KeyField::into_match(self.$field, $bits)),*]
                }
            }

            $(impl $crate::row::ActionOf<$table> for $action {})*
        )*
    };
}

pub(super) use {actions, tables};
