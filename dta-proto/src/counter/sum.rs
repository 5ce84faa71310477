//! Structures of counters that are summed.

/// Declares a structure of counters, and how another's are added to them.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $Name:ident {
        $($(#[$about:meta])* pub $counter:ident: u64,)+
    }) => {
        $(#[$meta])*
        $vis struct $Name { $($(#[$about])* pub $counter: u64,)+ }

        impl $Name {
            /// Adds another's counters.
            $vis fn add(&mut self, other: &$Name) {
                $(self.$counter += other.$counter;)+
            }
        }
    };
}
