//! Giving back the memory that calls took.
#![allow(unsafe_code)]

/// Has the allocator give memory back to the system soon after it was freed. To be called before there are other threads.
///
/// Left to itself glibc's keeps, in each of eight arenas a processor, up to twice the largest block that was ever freed (`mallopt(3)`, with
/// `M_MMAP_THRESHOLD` as it adapts itself): after requests and answers of tens of megabytes that came to more than a gigabyte.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in
        [(libc::M_MMAP_THRESHOLD, 1 << 20), (libc::M_TRIM_THRESHOLD, 1 << 20), (libc::M_ARENA_MAX, 4)]
    {
        // SAFETY: it takes two numbers, and changes nothing of what is allocated. Where it refuses them, all is as before.
        unsafe { libc::mallopt(parameter, value) };
    }
}
