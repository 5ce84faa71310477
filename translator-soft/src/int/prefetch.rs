//! Asking memory for what is needed soon.

/// Brings the cache line of an item on its way into the caches.
#[inline]
pub(super) fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    // SAFETY: a prefetch changes nothing but caches, whatever the address; this one is of a live item besides.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            std::ptr::from_ref(item).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}
