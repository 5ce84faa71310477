//! Tables of configurations: each key is declared once, with its type, its default and the range of its numbers.

/// Declares a table of a configuration. A key missing from the file has its default; an unknown key is refused.
///
/// ```
/// dta_files::config_table! {
///     pub struct Limits {
///         /// Simultaneous calls.
///         pub calls: usize = 64, in 1..=1_000_000;
///         pub name: String = "limits".into();
///     }
/// }
///
/// let limits = Limits { calls: 0, ..Limits::default() };
/// assert_eq!(limits.bounded_numbers(), [("calls", 0, 1..=1_000_000)]);
/// ```
#[macro_export]
macro_rules! config_table {
    ($(#[$meta:meta])* $vis:vis struct $Table:ident {
        $($(#[$about:meta])* $key_vis:vis $key:ident: $Type:ty = $default:expr $(, in $range:expr)?;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        $vis struct $Table { $($(#[$about])* $key_vis $key: $Type,)+ }

        impl ::core::default::Default for $Table {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }

        impl $Table {
            /// The numbers with a range: key, value and range.
            #[allow(dead_code)]
            $vis fn bounded_numbers(&self) -> Vec<(&'static str, u64, ::core::ops::RangeInclusive<u64>)> {
                vec![$($((stringify!($key), self.$key as u64, $range),)?)+]
            }
        }
    };
}
