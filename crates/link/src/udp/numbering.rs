//! How the kernel numbers the datagrams into which it cuts a message.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Instruction, RUN_MAX, bind};
use crate::sys::{self, Messages, Outgoing};
use crate::{LinkError, Result};

/// Length of a datagram in bytes: more than the number of datagrams in a run.
const LEN: u16 = 100;
const SOON: Duration = Duration::from_secs(1);

/// A filter that cuts a datagram's payload to one byte more than its IPv4 id. Filters see the UDP header, too.
const KEEP_ID_BYTES: [Instruction; 3] =
    [Instruction::load_ipv4_id(), Instruction::add(8 + 1), Instruction::choose_socket()];

/// Whether the datagrams of each message (UDP_SEGMENT) leave with the IPv4 ids 0, 1, 2, …, as RoCEv2 frames in
/// runs need: the iCRC covers the id. The first call in a process sends a message over loopback, reads the ids
/// of its datagrams with a socket filter, which needs no privilege, and stores the answer.
///
/// # Errors
/// There is no loopback, or the kernel refuses such messages or the filter.
pub fn numbers_from_zero() -> &'static Result<bool> {
    static ANSWER: OnceLock<Result<bool>> = OnceLock::new();
    ANSWER.get_or_init(probe_kernel)
}

fn probe_kernel() -> Result<bool> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let ((from, _), (to, address)) = (bind(any, None, true)?, bind(any, None, true)?);
    sys::attach_filter(to.as_fd(), &KEEP_ID_BYTES.map(Instruction::to_sock_filter))
        .map_err(LinkError::io_with_context("cannot attach a filter (SO_ATTACH_FILTER)"))?;
    let mut messages = Messages::new(RUN_MAX);
    // Twice, because each message must start from 0 again.
    for _ in 0..2 {
        let bytes = vec![0; usize::from(LEN) * RUN_MAX];
        let message = Outgoing { bytes: &bytes, segment: Some(LEN), to: Some(address.into()), from: None };
        messages
            .send(from.as_fd(), std::iter::once(message))
            .map_err(LinkError::io_with_context("cannot send datagrams as one message (UDP_SEGMENT)"))?;
        let mut buffers = vec![[0; LEN as usize]; RUN_MAX];
        let mut came = 0;
        while came < RUN_MAX {
            if !crate::wait_readable(&[to.as_fd()], Some(SOON))? {
                return Ok(false);
            }
            let buffers = buffers.iter_mut().map(|buffer| &mut buffer[..]);
            let received = messages
                .recv(to.as_fd(), buffers.take(RUN_MAX - came))
                .map_err(LinkError::io_with_context("cannot receive datagrams"))?;
            if (0..received).any(|index| messages.incoming_metadata(index).len != came + index + 1) {
                return Ok(false);
            }
            came += received;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_numbers_from_zero() {
        assert!(matches!(numbers_from_zero(), Ok(true)));
    }
}
