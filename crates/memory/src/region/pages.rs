//! The pages that back a region, as the kernel reports them for the whole process.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};

/// Bytes in transparent huge pages for each mapping that begins at one of `starts`, in the same order. The kernel
/// scans all memory of the process for this, so ask for many regions at once.
pub(super) fn transparent(starts: &[usize]) -> Vec<usize> {
    let mut found = vec![0; starts.len()];
    let places: HashMap<usize, usize> = starts.iter().enumerate().map(|(i, &start)| (start, i)).collect();
    let Ok(smaps) = std::fs::File::open("/proc/self/smaps") else { return found };
    let mut current = None;
    for line in BufReader::with_capacity(1 << 16, smaps).lines().map_while(Result::ok) {
        // The first line of a mapping begins with its addresses, the others with a capital.
        if !line.starts_with(|c: char| c.is_ascii_uppercase()) {
            let start = line.split('-').next().and_then(|start| usize::from_str_radix(start, 16).ok());
            current = start.and_then(|start| places.get(&start)).copied();
        } else if let Some(place) = current
            && let Some((name, rest)) = line.split_once(':')
            && ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"].contains(&name)
        {
            let kib = rest.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or(0);
            found[place] += kib * 1024;
        }
    }
    found
}
