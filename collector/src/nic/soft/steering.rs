//! Which thread of the NIC has a queue pair, by its number.

use dta_link::udp::Instruction;

/// Where the last two bytes of the queue pair number are in a RoCEv2 payload (BTH, bytes 5 to 7).
const LOW_HALF: u32 = 6;

/// The part, out of `parts`, whose queue pairs have this number: its low 16 bits modulo the number of parts.
#[inline]
pub(super) fn part_of(qpn: u32, parts: usize) -> usize {
    (qpn & 0xffff) as usize % parts.max(1)
}

/// The same as a kernel program on the sockets: a frame goes to the socket of its queue pair's part, one that is too
/// short to the first.
pub(super) fn program(parts: usize) -> [Instruction; 3] {
    [Instruction::load_half(LOW_HALF), Instruction::modulo(parts.max(1) as u32), Instruction::choose()]
}
