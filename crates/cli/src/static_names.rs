//! Host name lookup in a static program.
//!
//! glibc uses the sources listed in `/etc/nsswitch.conf`. A static program has two of them built in: `files`
//! (`/etc/hosts`) and `dns` (`/etc/resolv.conf`). For any other it loads a shared library, which must match
//! its glibc version exactly or the program may crash. So a static program uses these two, whatever the file
//! lists.
#![allow(unsafe_code)]

/// Selects the sources of host names in a static program; does nothing in others. Call it first in `main`.
pub fn choose_name_sources() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        use std::ffi::{c_char, c_int};

        unsafe extern "C" {
            // nss.h of glibc.
            fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
        }
        // SAFETY: both strings end in a zero byte and live forever; glibc copies what it keeps. No other thread can be looking up
        // a name yet. If it fails, for lack of memory, the file stays in effect.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    }
}
