//! Captures of Ethernet frames (pcap), compressed by gzip: tshark and Wireshark open them as they are.
#![allow(dead_code, reason = "not every test that takes this file writes captures")]

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// Bytes of the header of a capture, and of that of each frame in it.
const FILE: usize = 24;
const FRAME: usize = 16;

/// Writes frames as a capture. Equal frames make equal bytes: no times are written.
pub(crate) fn write_capture<'a>(
    output: impl Write,
    frames: impl IntoIterator<Item = &'a [u8]>,
) -> io::Result<()> {
    let mut output = GzEncoder::new(output, Compression::best());
    output.write_all(&[0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1].map(u32::to_le_bytes).concat())?;
    for frame in frames {
        let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
        output.write_all(&[0, 0, len, len].map(u32::to_le_bytes).concat())?;
        output.write_all(frame)?;
    }
    output.finish()?;
    Ok(())
}

/// The frames of a capture that [`write_capture`] made.
///
/// # Errors
/// It is cut, or none.
pub(crate) fn read(input: impl Read) -> io::Result<Vec<Vec<u8>>> {
    let mut bytes = Vec::new();
    GzDecoder::new(input).read_to_end(&mut bytes)?;
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the capture is cut");
    Ok(parse_frames(&bytes).ok_or_else(cut)?.into_iter().map(<[u8]>::to_vec).collect())
}

/// The frames of an uncompressed capture; `None` if it is cut.
pub(crate) fn parse_frames(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = bytes.get(FILE..)?;
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let end = FRAME + u32::from_le_bytes(*rest.get(8..12)?.first_chunk()?) as usize;
        frames.push(rest.get(FRAME..end)?);
        rest = &rest[end..];
    }
    Some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_a_cut_capture_is_refused() {
        let frames = [vec![1; 60], vec![], vec![2; 1500]];
        let mut file = Vec::new();
        write_capture(&mut file, frames.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(read(&file[..]).unwrap(), frames);
        assert!(read(&file[..file.len() - 9]).is_err());
        let mut short = Vec::new();
        let mut plain = GzEncoder::new(&mut short, Compression::fast());
        plain.write_all(&[0; FILE + FRAME - 1]).unwrap();
        plain.finish().unwrap();
        assert!(read(&short[..]).is_err());
    }
}
