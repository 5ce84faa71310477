//! Runs: consecutive datagrams to one place, all of one length except the last, which may be shorter. The
//! kernel accepts a run as one message and cuts it (UDP_SEGMENT).

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::BorrowedFd;

use dta_proto::wire::{datagram, roce};

use super::RUN_MAX;
use super::sender::{send_queue, wait_for_room};
use crate::LinkCounters;
use crate::sys::{Messages, Outgoing};

/// Longest message: UDP's own limit.
const BYTES_MAX: usize = datagram::PACKET_MAX - datagram::HEADER_LEN;

// An iCRC can be made for the number of every datagram of a run.
const _: () = assert!(RUN_MAX <= roce::RUN_IDS);

/// Consecutive runs that the kernel may refuse, while accepting their datagrams one by one, before no more
/// runs are built.
const REFUSED_MAX: u8 = 4;

/// A datagram to send: its payload, and the number of bytes to count for it.
pub(super) type Datagram<'a> = (Outgoing<'a>, usize);

/// Combines datagrams into runs and sends them.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Whether the datagrams are RoCEv2 frames, whose iCRC covers the number that the kernel gives each.
    frames: bool,
    plan: Vec<DatagramRun>,
    /// The payloads of runs, back to back.
    bytes: Vec<u8>,
    refused: u8,
}

#[derive(Debug)]
struct DatagramRun {
    /// Its datagrams, by their place in the queue.
    members: Range<usize>,
    /// Where their payloads are combined; empty for a single datagram.
    bytes: Range<usize>,
    segment: u16,
    to: Option<SocketAddr>,
    from: Option<Ipv4Addr>,
    /// Bytes to count for them.
    counted: usize,
}

impl Runs {
    /// For RoCEv2 frames, or for other datagrams.
    pub(super) fn new(frames: bool) -> Runs {
        Runs { frames, ..Runs::default() }
    }

    pub(super) fn are_worthwhile(&self) -> bool {
        self.refused < REFUSED_MAX
    }

    /// As [`send_queue`], but combines consecutive datagrams of one length to one place. Keeps their order.
    pub(super) fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        messages: &mut Messages,
        counters: &mut LinkCounters,
        queue: &[u16],
        patience: u32,
        datagram: impl Fn(usize) -> Datagram<'a>,
    ) {
        self.plan_runs(queue, &datagram);
        let (mut rest, mut retries) = (&self.plan[..], 0);
        let of = |place: usize| datagram(usize::from(queue[place]));
        while let Some(first) = rest.first() {
            let outgoing = rest.iter().map(|run| match run.bytes.is_empty() {
                true => of(run.members.start).0,
                false => Outgoing {
                    bytes: &self.bytes[run.bytes.clone()],
                    segment: Some(run.segment),
                    to: run.to,
                    from: run.from,
                },
            });
            let error = match messages.send(socket, outgoing) {
                Ok(sent) => {
                    for run in &rest[..sent] {
                        counters.count_run_sent(run.members.len(), run.counted);
                        if run.members.len() > 1 {
                            self.refused = 0;
                        }
                    }
                    (rest, retries) = (&rest[sent..], 0);
                    continue;
                }
                Err(error) => error,
            };
            if wait_for_room(socket, &error, patience, &mut retries) {
                continue;
            }
            let members = first.members.clone();
            let refused = matches!(
                error.raw_os_error(),
                Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
            );
            if refused && members.len() > 1 {
                // Perhaps only the run is refused, as by a device or path with a smaller MTU. Each datagram
                // gets its own result.
                let before = counters.sent;
                send_queue(socket, messages, counters, &queue[members], patience, &datagram);
                if counters.sent > before {
                    self.refused += 1;
                }
            } else {
                members.for_each(|_| counters.count_unsent(&error));
            }
            (rest, retries) = (&rest[1..], 0);
        }
    }

    /// Plans runs of `queue`, in its order.
    fn plan_runs<'a>(&mut self, queue: &[u16], datagram: &impl Fn(usize) -> Datagram<'a>) {
        let Self { frames, plan, bytes, .. } = self;
        let frames = *frames;
        plan.clear();
        bytes.clear();
        // The run that is still growing, and its first payload, which is copied when a second one follows.
        let mut open: Option<&[u8]> = None;
        for (place, index) in queue.iter().enumerate() {
            let (Outgoing { bytes: payload, to, from, .. }, counted) = datagram(usize::from(*index));
            let may_join = || match frames {
                true => roce::may_be_numbered(payload.len()),
                false => !payload.is_empty(),
            };
            if let (Some(first), Some(run)) = (open, plan.last_mut())
                && (run.to, run.from) == (to, from)
                && (payload.len() == first.len() || payload.len() < first.len() && may_join())
                && run.members.len() < RUN_MAX
                && run.members.len() * first.len() + payload.len() <= BYTES_MAX
            {
                if run.bytes.is_empty() {
                    run.bytes = bytes.len()..bytes.len();
                    bytes.extend_from_slice(first);
                }
                let at = bytes.len();
                bytes.extend_from_slice(payload);
                if frames {
                    roce::number_icrc(&mut bytes[at..], run.members.len());
                }
                run.bytes.end = bytes.len();
                run.members.end = place + 1;
                run.counted += counted;
                if payload.len() < first.len() {
                    open = None;
                }
                continue;
            }
            let segment = payload.len() as u16;
            plan.push(DatagramRun { members: place..place + 1, bytes: 0..0, segment, to, from, counted });
            open = may_join().then_some(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of the datagrams of each run.
    fn runs(lengths: &[usize]) -> Vec<Vec<usize>> {
        let payloads: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(n, len)| vec![n as u8; *len]).collect();
        let queue: Vec<u16> = (0..lengths.len() as u16).collect();
        let mut runs = Runs::default();
        let datagram = |index: usize| (Outgoing { bytes: &payloads[index], ..Outgoing::default() }, 0);
        runs.plan_runs(&queue, &datagram);
        let all = &runs.plan;
        for run in all.iter().filter(|run| run.members.len() > 1) {
            assert_eq!(runs.bytes[run.bytes.clone()], payloads[run.members.clone()].concat());
            assert_eq!(usize::from(run.segment), payloads[run.members.start].len());
        }
        all.iter().map(|run| lengths[run.members.clone()].to_vec()).collect()
    }

    #[test]
    fn a_run_is_of_one_length_and_its_last_datagram_may_be_shorter() {
        assert_eq!(runs(&[40, 40, 40]), [[40, 40, 40]]);
        assert_eq!(runs(&[40, 40, 32, 40, 40]), [&[40, 40, 32][..], &[40, 40]]);
        assert_eq!(runs(&[40, 48, 48, 44, 44]), [&[40][..], &[48, 48, 44], &[44]]);
        assert_eq!(runs(&[0, 0, 4, 0]), [&[0][..], &[0], &[4], &[0]]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn a_run_is_no_longer_than_the_kernel_takes() {
        let lengths = |runs: Vec<Vec<usize>>| runs.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(runs(&[8; 150])), [64, 64, 22]);
        assert_eq!(lengths(runs(&[9000; 20])), [7, 7, 6]);
        assert_eq!(lengths(runs(&[40_000; 2])), [1, 1]);
        // The exact limit: 65,507 bytes.
        assert_eq!(lengths(runs(&[32_754, 32_753])), [2]);
        assert_eq!(lengths(runs(&[32_754, 32_754])), [1, 1]);
    }
}
