//! Returns the memory of calls to the system.
#![allow(unsafe_code)]

/// Makes the allocator return memory to the system soon after it is freed. Call it before there are other threads.
///
/// By default glibc keeps, in each of eight arenas per processor, up to twice the largest block ever freed
/// (`mallopt(3)`, with its adaptive `M_MMAP_THRESHOLD`): after requests and answers of tens of megabytes, more than a
/// gigabyte.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in
        [(libc::M_MMAP_THRESHOLD, 1 << 20), (libc::M_TRIM_THRESHOLD, 1 << 20), (libc::M_ARENA_MAX, 4)]
    {
        // SAFETY: it takes two numbers, and changes no allocation. If it refuses them, everything is as before.
        unsafe { libc::mallopt(parameter, value) };
    }
}
