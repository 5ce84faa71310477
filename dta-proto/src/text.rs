//! Types that files and messages hold as text.

/// Has serde write a type as its [`Display`](core::fmt::Display) shows it, and read it by its
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
