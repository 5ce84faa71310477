//! A chip of several pipes, each with registers of its own: a command that comes in by the CPU port flushes a row in the pipe
//! that it names, and nothing of the network is a command.

use crate::assembly::parser::{Parser, ingress_packet};
use crate::assembly::pipeline::DEPARSER;
use crate::assembly::profiles::{self, POSTCARDS, WORDS};
use crate::flush_command::{self, PIPE_AT, ROW_AT, TYPE_AT};
use dta_proto::key::Key;
use dta_proto::layout::hash;

use super::{ROWS, Row, Switch, depart, postcard, put};

const KEY: Key = Key([7; 16]);

/// A chip, with the number of its CPU port.
struct Chip {
    parser: Parser,
    pipes: Vec<Switch>,
    cpu: u16,
}

/// What becomes of a packet.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing of it leaves.
    Dropped,
    /// It leaves by a port, as it came.
    Passed(u16),
    /// A row leaves by its queue pair.
    Left(Row),
}

impl Chip {
    /// A chip on which a path has begun in each pipe.
    fn new(pipes: usize) -> Chip {
        let parser = Parser::from_assembly(&profiles::read_profile_assembly(POSTCARDS), "ingress");
        let mut all = vec![Switch::new(POSTCARDS); pipes];
        for (pipe, switch) in all.iter_mut().enumerate() {
            assert_eq!(postcard(switch, &KEY, 1, 3, value_in(pipe)), Ok(vec![]));
            // Queue pair 0, to which a command with no other leads.
            let pair = [("hdr.bridge.pair", 0)];
            switch.ingress.add_table_entry("Admission.departure", &pair, "depart", &[("group", 16)]);
        }
        Chip { parser, pipes: all, cpu: if pipes > 2 { 320 } else { 192 } }
    }

    /// Takes a packet through the ingress of its port, from its first byte on.
    fn ingress(&mut self, port: u16, frame: &[u8]) -> Fate {
        let switch = &mut self.pipes[usize::from(port / 128)];
        let parsed = self.parser.parse_packet(&ingress_packet(port, frame)).expect("a whole packet");
        let ingress = &mut switch.ingress;
        ingress.load_parsed(&parsed);
        let from = ingress.first_table();
        ingress.run(&from, DEPARSER);
        let of = |field: &str| ingress.get(field, DEPARSER);
        if ingress.get("meta.leaves", DEPARSER - 1) == 1 {
            let key =
                ["hdr.key_first.word", "hdr.key.b", "hdr.key.c", "hdr.key.d"].map(|name| of(name) as u32);
            let words: Vec<u32> = WORDS[1..8].iter().map(|word| of(word) as u32).collect();
            // Its two copies.
            assert_eq!((of("hdr.kind.work"), of("ig_intr_md_for_tm.mcast_grp_a")), (4, 18));
            return Fate::Left((key, depart(&mut switch.egress, &words)));
        }
        if of("ig_intr_md_for_dprsr.drop_ctl") != 0 {
            return Fate::Dropped;
        }
        // It is put before the packet, of which nothing was taken off.
        assert_eq!(
            (of("hdr.kind.work"), of("hdr.kind.flooded"), of("hdr.bridge.$valid"), parsed.payload),
            (0, 0, 0, 16)
        );
        assert_eq!(of("ig_intr_md_for_tm.mcast_grp_a"), 0);
        Fate::Passed(of("ig_intr_md_for_tm.ucast_egress_port") as u16)
    }

    /// The same until it has left: what passes to a recirculation port comes back by it.
    fn take(&mut self, port: u16, frame: &[u8]) -> Fate {
        match self.ingress(port, frame) {
            Fate::Passed(other) if matches!(other % 128, 68..=71) => {
                let egress = &mut self.pipes[usize::from(other / 128)].egress;
                egress.clear_containers();
                let from = egress.first_table();
                put(egress, &[("hdr.kind.$valid", 1), ("hdr.kind.work", 0)]);
                egress.run(&from, DEPARSER);
                assert_eq!(egress.get("eg_intr_md_for_dprsr.drop_ctl", DEPARSER), 0);
                for header in ["kind", "ethernet", "bth", "target"] {
                    let valid = format!("hdr.{header}.$valid");
                    assert!(
                        !egress.has_field(&valid, DEPARSER) || egress.get(&valid, DEPARSER) == 0,
                        "{header}"
                    );
                }
                self.ingress(other, frame)
            }
            other => other,
        }
    }

    /// Whether the row is in the cache of each pipe.
    fn rows(&mut self) -> Vec<bool> {
        let head = |switch: &mut Switch| switch.ingress.register_mut("row_head").get(place()) != 0;
        self.pipes.iter_mut().map(head).collect()
    }
}

fn value_in(pipe: usize) -> u32 {
    0x1111 * (pipe as u32 + 1)
}

fn place() -> u32 {
    (hash::key_hash(&KEY) & (ROWS - 1)) | ROWS
}

/// The command that flushes the row; `pipe` as it stands there.
fn command(pipe: u8) -> Vec<u8> {
    let mut frame = flush_command::flush_row();
    frame[PIPE_AT] = pipe;
    frame[ROW_AT..ROW_AT + 4].copy_from_slice(&place().to_be_bytes());
    frame
}

#[test]
fn a_command_of_the_cpu_port_flushes_the_row_of_the_pipe_that_it_names() {
    for pipes in [2, 4] {
        let mut chip = Chip::new(pipes);
        let of_cpu = usize::from(chip.cpu / 128);
        let mut held = vec![true; pipes];
        for pipe in 0..pipes {
            let named = if pipe == of_cpu { 0 } else { pipe as u8 + 1 };
            let cpu = chip.cpu;
            let Fate::Left((key, words)) = chip.take(cpu, &command(named)) else {
                panic!("nothing left of pipe {pipe} of {pipes}");
            };
            assert_eq!(key, [0x0707_0707; 4]);
            assert_eq!(words[2], value_in(pipe), "pipe {pipe} of {pipes}");
            held[pipe] = false;
            assert_eq!(chip.rows(), held, "pipe {pipe} of {pipes}");
            // There is nothing more.
            assert_eq!(chip.take(cpu, &command(named)), Fate::Dropped);
        }
        // One for the CPU port's pipe that names it goes the long way.
        let mut chip = Chip::new(pipes);
        let cpu = chip.cpu;
        assert!(matches!(chip.take(cpu, &command(of_cpu as u8 + 1)), Fate::Left(_)));
    }
}

#[test]
fn a_command_for_another_pipe_passes_its_recirculation_port() {
    let mut chip = Chip::new(4);
    let cpu = chip.cpu;
    let ports = [1, 2, 3, 4].map(|pipe| chip.ingress(cpu, &command(pipe)));
    assert_eq!(ports, [68, 196, 324, 452].map(Fate::Passed));
    assert_eq!(chip.rows(), [true; 4]);
}

#[test]
fn nothing_of_the_network_is_a_command() {
    let mut chip = Chip::new(4);
    let other_type = |mut frame: Vec<u8>, ethertype: u16| {
        frame[TYPE_AT..TYPE_AT + 2].copy_from_slice(&ethertype.to_be_bytes());
        frame
    };
    for port in (0..512).filter(|port| ![192, 320].contains(port)) {
        for pipe in 0..5 {
            if port % 128 != 68 {
                assert_eq!(chip.take(port, &command(pipe)), Fate::Dropped, "port {port}, for pipe {pipe}");
            }
            // NACKs come back by port 68: IPv4. Nothing but a command has that type there.
            for ethertype in [0x0800, 0x86dd, 0x88b4, 0x88b6, 0x08b5, 0] {
                let forged = other_type(command(pipe), ethertype);
                assert_eq!(chip.take(port, &forged), Fate::Dropped, "{ethertype:#06x} at port {port}");
            }
        }
    }
    assert_eq!(chip.rows(), [true; 4]);
}
