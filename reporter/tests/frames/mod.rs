//! The list of frames.

/// A frame and its digests.
pub(crate) struct Frame {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) full: u64,
    pub(crate) core: u64,
}

/// All of `trace/vectors/frames.txt`.
pub(crate) fn all() -> Vec<Frame> {
    include_str!("../../vectors/frames.txt").lines().map(frame).collect()
}

fn frame(line: &'static str) -> Frame {
    let mut words = line.split(' ');
    let mut next = || words.next().expect("a line has four words");
    let (name, hex) = (next(), next());
    let mut number = || u64::from_str_radix(next(), 16).expect("a digest");
    let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"));
    Frame { name, bytes: bytes.collect(), full: number(), core: number() }
}
