//! Structures of counters, declared from the definitions of what they count.

/// Declares a structure of counters that are not published under names of their own, with a method to add another one's. Those
/// after `by` count by reason: a field for each, and a method that returns all in the order of the enumeration.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $Name:ident {
        $($(#[$about:meta])* pub $counter:ident: u64,)+
    } $(by $by:ident: $Reason:ident { $($of_reason:ident = $Variant:ident,)+ })*) => {
        $(#[$meta])*
        $vis struct $Name {
            $($(#[$about])* pub $counter: u64,)+
            $($(#[doc = concat!("Counts [`", stringify!($Reason), "::", stringify!($Variant), "`].")] pub $of_reason: u64,)+)*
        }

        impl $Name {
            /// Adds the counters of another.
            $vis fn add(&mut self, other: &$Name) {
                $(self.$counter += other.$counter;)+
                $($(self.$of_reason += other.$of_reason;)+)*
            }

            $(
                /// The counts by reason, zeros included, in the order of the enumeration.
                $vis fn $by(&self) -> [($Reason, u64); $Reason::ALL.len()] {
                    core::array::from_fn(|at| match $Reason::ALL[at] {
                        $($Reason::$Variant => ($Reason::$Variant, self.$of_reason),)+
                    })
                }
            )*
        }
    };
}

/// Declares a structure of counters: first each field with its [`Definition`](crate::counter::Definition) if it is published,
/// then the counts by reason, then the structure's other fields. The values of variable parts of names follow the structure's
/// name.
///
/// ```
/// use dta_proto::counter::{Reason, translator as names};
///
/// dta_proto::published_counters! {
///     #[derive(Default)]
///     pub struct Counters {
///         pub received: u64 = names::RECEIVED,
///     }
///     by {
///         dropped: Reason = names::DROPPED,
///     }
/// }
///
/// let mut counters = Counters::default();
/// counters.dropped[Reason::Checksum as usize] += 1;
/// let one = Counters { received: 1, ..Counters::default() };
/// counters.add(&one);
/// assert_eq!(counters.named_counters(), [("received".into(), 1), ("dropped.checksum".into(), 1)]);
/// ```
#[macro_export]
macro_rules! published_counters {
    (@ $add:ident $named:ident $(#[$meta:meta])* $vis:vis struct $Name:ident ($($variable:ident)*) {
        $($(#[$about:meta])* pub $counter:ident: u64 $(= $definition:path)?,)*
    } { $($array:ident: $Values:ident = $of_array:path,)* } { $($more:tt)* }) => {
        $(#[$meta])*
        $vis struct $Name {
            $($(#[$about])* $(#[doc = concat!("Published as [`", stringify!($definition), "`].")])? pub $counter: u64,)*
            $(#[doc = concat!("Published as [`", stringify!($of_array), "`].")] pub $array: [u64; $Values::ALL.len()],)*
            $($more)*
        }

        impl $Name {
            /// Adds the counters of another.
            #[allow(dead_code)]
            $vis fn $add(&mut self, other: &$Name) {
                $(self.$counter += other.$counter;)*
                $(self.$array.iter_mut().zip(other.$array).for_each(|(own, more)| *own += more);)*
            }

            /// Every counter by its dotted name, except reasons that are 0.
            $vis fn $named(&self $(, $variable: &str)*) -> Vec<(String, u64)> {
                let values: &[&str] = &[$($variable),*];
                #[allow(unused_mut)]
                let mut named = vec![$($(($definition.format_name(values), self.$counter),)?)*];
                $(for (value, count) in $Values::ALL.iter().zip(&self.$array).filter(|(_, count)| **count != 0) {
                    named.push(($of_array.format_name(&[value.name()]), *count));
                })*
                named
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis struct $Name:ident $(($($variable:ident),+))? { $($fields:tt)* } $(by { $($arrays:tt)* })?) => {
        $crate::published_counters! {
            @ add named_counters $(#[$meta])* $vis struct $Name ($($($variable)+)?) { $($fields)* } { $($($arrays)*)? } {}
        }
    };
    ($(#[$meta:meta])* $vis:vis struct $Name:ident { $($fields:tt)* } $(by { $($arrays:tt)* })? and { $($more:tt)* }) => {
        $crate::published_counters! {
            @ add_fields named_fields $(#[$meta])* $vis struct $Name () { $($fields)* } { $($($arrays)*)? } { $($more)* }
        }
    };
}

/// As [`published_counters!`](crate::published_counters), for counters that several threads increment.
#[macro_export]
macro_rules! shared_counters {
    ($(#[$meta:meta])* $vis:vis struct $Name:ident $(($variable:ident))? {
        $($field_vis:vis $counter:ident = $definition:path,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $vis struct $Name {
            $(#[doc = concat!("Published as [`", stringify!($definition), "`].")] $field_vis $counter: core::sync::atomic::AtomicU64,)+
        }

        impl $Name {
            /// Every counter by its dotted name.
            $vis fn named_counters(&self $(, $variable: &str)?) -> Vec<(String, u64)> {
                // Relaxed: no other memory is published through these numbers.
                let load = |counter: &core::sync::atomic::AtomicU64| counter.load(core::sync::atomic::Ordering::Relaxed);
                let values: &[&str] = &[$($variable)?];
                vec![$(($definition.format_name(values), load(&self.$counter)),)+]
            }
        }
    };
}
