//! Which thread of the NIC has a queue pair, by the queue pair's number.

use dta_link::udp::Instruction;

/// Where the last two bytes of the queue pair number are in a RoCEv2 payload (BTH, bytes 5 to 7).
const LOW_HALF: u32 = 6;

/// The bits of a queue pair number that are in the UDP source port of its frames (`dta_proto::wire::frame`). The
/// kernel delivers frames of one source port as one message, to one socket.
const OF_PORT: u32 = 0x3fff;

/// The part, out of `parts`, of the queue pairs with this number: its low 14 bits modulo the number of parts.
#[inline]
pub(super) fn part_for_qpn(qpn: u32, parts: usize) -> usize {
    (qpn & OF_PORT) as usize % parts.max(1)
}

/// The same as a kernel program on the sockets: a frame goes to the socket of its queue pair's part, a frame that is
/// too short to the first socket.
pub(super) fn steering_program(parts: usize) -> [Instruction; 4] {
    [
        Instruction::load_half(LOW_HALF),
        Instruction::keep_bits(OF_PORT),
        Instruction::modulo(parts.max(1) as u32),
        Instruction::choose_socket(),
    ]
}

#[cfg(test)]
mod tests {
    use dta_proto::wire::frame::source_port;

    use super::*;

    #[test]
    fn queue_pairs_whose_frames_may_come_in_one_message_are_of_one_part() {
        for parts in 1..=16 {
            for qpn in (0..1 << 24).step_by(977) {
                let other = qpn ^ 0xa5_4000;
                assert_eq!(source_port(qpn), source_port(other));
                assert_eq!(part_for_qpn(qpn, parts), part_for_qpn(other, parts), "{qpn:#x} of {parts}");
            }
        }
    }
}
