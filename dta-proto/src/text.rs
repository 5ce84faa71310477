//! Types that are written as text in files, messages and on command lines.

use std::fmt::Write;

/// Bytes as hex digits.
pub fn to_hex_digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Bytes as hex digits, in groups of four bytes.
pub fn hex_groups(bytes: &[u8]) -> String {
    bytes.chunks(4).map(to_hex_digits).collect::<Vec<_>>().join(" ")
}

/// Declares an enumeration whose variants have names.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $Name:ident {
        $($(#[$about:meta])* $Variant:ident $(= $number:literal)?: $text:literal,)+
    }) => {
        $(#[$meta])*
        $vis enum $Name { $($(#[$about])* $Variant $(= $number)?,)+ }

        impl $Name {
            /// All variants.
            $vis const ALL: [$Name; [$($text),+].len()] = [$($Name::$Variant),+];

            /// Their names, in the same order.
            $vis const NAMES: [&'static str; [$($text),+].len()] = [$($text),+];

            /// Its name.
            $vis const fn name(self) -> &'static str {
                match self {
                    $($Name::$Variant => $text,)+
                }
            }

            /// The variant with this name.
            $vis fn from_name(name: &str) -> Option<$Name> {
                $Name::ALL.into_iter().find(|one| one.name() == name)
            }
        }

        impl ::core::fmt::Display for $Name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

/// Implements `FromStr` by name for types that [`named!`](crate::named) declares.
#[macro_export]
macro_rules! parse_by_name {
    ($($Type:ty),+) => {$(
        impl ::core::str::FromStr for $Type {
            type Err = ::std::string::String;

            fn from_str(name: &str) -> ::core::result::Result<Self, Self::Err> {
                Self::from_name(name).ok_or_else(|| format!("must be one of {}", Self::NAMES.join(", ")))
            }
        }
    )+};
}

/// Has serde write a type with its [`Display`](core::fmt::Display) and read it with its
/// [`FromStr`](core::str::FromStr).
#[macro_export]
macro_rules! serde_as_text {
    ($($Type:ty),+) => {$(
        impl ::serde::Serialize for $Type {
            fn serialize<S: ::serde::Serializer>(&self, to: S) -> ::core::result::Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $Type {
            fn deserialize<D: ::serde::Deserializer<'de>>(from: D) -> ::core::result::Result<Self, D::Error> {
                let text = <::std::string::String as ::serde::Deserialize>::deserialize(from)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }
    )+};
}
