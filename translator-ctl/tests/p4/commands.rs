//! Commands to a Tofino through its CPU port: flushes of lists, rows and columns, at once and by age, and
//! probes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dta_proto::program::Primitive;
use dta_proto::wire::frame::Received;
use dta_proto::wire::roce::Psn;
use dta_switch::P4Switch;
use dta_switch::bfruntime::BfRuntime;
use dta_switch::pipeline::TRANSLATOR;
use dta_switch::tofino::Profile;
use dta_switch::{After, Target as _};
use dta_translator::config::{Config, Switch};

use crate::profiles::{BATCHES_OF_16, BATCHES_OF_32, POSTCARDS, SKETCH, program, switch, target};
use crate::tofino::FakeTofino;
use crate::{Bed, block_on};

/// Where the fields of a command are: its work, its pipe, the place of a row, and the bridge.
const WORK: usize = 14;
const PIPE: usize = 15;
const ROW: usize = 20;
const BRIDGE: usize = 24;
const MINUTE_US: u32 = 60_000_000;
const NOTHING: [u32; 0] = [];

/// The frames that a switch was sent, by an interface that may be down.
#[derive(Clone, Default)]
struct Sent {
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
    down: Arc<AtomicBool>,
}

impl Sent {
    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames.lock().unwrap())
    }

    fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The place of what a command flushes in the registers.
fn state_of(frame: &[u8], profile: Profile) -> u32 {
    let index = BRIDGE + if profile == Profile::Batches { 7 } else { 6 };
    word(frame, if frame[WORK] == Primitive::Postcarding.opcode() { ROW } else { index })
}

/// Does what a command says, as far as registers show it. Rows are of the pipe that it is for, or of the CPU port's.
fn obey(tofino: &FakeTofino, frame: &[u8], profile: Profile) {
    let state = state_of(frame, profile);
    match frame[WORK] {
        0 => {}
        work if work == Primitive::Append.opcode() => {
            let sequence = tofino.register("list_sequence", state).unwrap_or(vec![0; 4]);
            tofino.set_register("list_count", state, &[0]);
            tofino.set_register("list_sequence", state, &[word(&sequence, 0) + 1]);
        }
        work if work == Primitive::Postcarding.opcode() => {
            let mut heads = tofino.values("row_head", state);
            let pipe = match (frame[PIPE], heads.len()) {
                (0, 1) => 0,
                (0, 2) => 1,
                (0, _) => 2,
                (pipe, _) => usize::from(pipe) - 1,
            };
            heads[pipe] = 0;
            tofino.set_register("row_head", state, &heads);
        }
        work if work == Primitive::SketchMerge.opcode() => tofino.set_register("column_unsent", state, &[0]),
        work => panic!("work {work}"),
    }
}

fn config_with(mut config: Config, ports: &[u16]) -> Config {
    let Some(Switch::Tofino(p4)) = config.switch.get_mut("b1") else { panic!() };
    p4.postcard_rows = 64;
    p4.collector_ports = ports.to_vec();
    config.check_values().unwrap();
    config
}

/// A switch of a profile that holds these stores, and receives commands, which it executes if it `obeys`.
struct CommandedSwitch {
    tofino: FakeTofino,
    target: P4Switch,
    sent: Sent,
}

impl CommandedSwitch {
    fn start(bed: &Bed, profile: Profile, stores: &[u16], port: u16, obeys: bool) -> CommandedSwitch {
        let (tofino, config) = switch(bed, profile);
        let config = config_with(config, &[port]);
        let Switch::Tofino(p4) = config.find_switch("b1").unwrap() else { panic!() };
        let mut runtime = block_on(async { BfRuntime::new(&p4.switch_options(), &TRANSLATOR).unwrap() });
        let (sent, chip) = (Sent::default(), tofino.clone());
        let frames = sent.clone();
        runtime.send_commands_by(Box::new(move |commands| {
            if frames.is_down() {
                return Ok(0);
            }
            commands.iter().filter(|_| obeys).for_each(|frame| obey(&chip, frame, profile));
            frames.frames.lock().unwrap().extend_from_slice(commands);
            Ok(commands.len())
        }));
        let mut target = P4Switch::new(
            Box::new(runtime),
            p4.translator_options("b1", &config.translator_of("b1").unwrap()),
        );
        block_on(target.apply_program(&program(stores), After::Open)).unwrap();
        tofino.with(|state| state.asked.clear());
        CommandedSwitch { tofino, target, sent }
    }

    /// Flushes what is `older_us` old, of all places; gives the places of the commands.
    fn flush(&mut self, primitive: Primitive, older_us: u32, profile: Profile) -> Vec<u32> {
        assert!(!block_on(self.target.flush_places(primitive, older_us, 0, 1024)).unwrap());
        self.sent.take().iter().map(|frame| state_of(frame, profile)).collect()
    }

    /// Numbers of the registers of a name that were asked for since the last time.
    fn asked(&self, name: &str) -> Vec<u32> {
        let all = self.tofino.with(|state| state.asked.clone());
        all.into_iter().filter(|(of, _)| of == name).map(|(_, index)| index).collect()
    }
}

#[test]
fn all_that_is_held_is_flushed_at_once_and_nothing_else() {
    let bed = Bed::start();
    let mut commanded =
        CommandedSwitch::start(&bed, Profile::Postcards, &[1, 3, POSTCARDS, BATCHES_OF_16], 1, true);
    commanded.tofino.set_register("list_count", 1, &[1]);
    commanded.tofino.set_register("list_sequence", 1, &[5]);
    for row in [3, 63] {
        commanded.tofino.set_register("row_head", row, &[0x0001_0000]);
    }
    // Of another store, or of none.
    commanded.tofino.set_register("list_count", 2, &[1]);
    commanded.tofino.set_register("row_head", 64, &[0x0001_0000]);
    block_on(commanded.target.flush_all()).unwrap();
    let sent = commanded.sent.take();
    let states: Vec<_> =
        sent.iter().map(|frame| (frame[WORK], state_of(frame, Profile::Postcards))).collect();
    assert_eq!(states, [(2, 1), (4, 3), (4, 63)]);
    // Entry list 1, whose ring is of 4 batches of 16 bytes.
    assert_eq!((word(&sent[0], BRIDGE + 18), word(&sent[0], BRIDGE + 26)), (0x40, 1));
    // Asked for: the lists and rows of the stores; the sequence of what was held; each once more after the command.
    assert_eq!(commanded.asked("list_count"), [0, 1, 1]);
    assert_eq!(commanded.asked("list_sequence"), [1]);
    assert_eq!(commanded.asked("row_head"), (0..64).chain([3, 63]).collect::<Vec<_>>());
    assert!(commanded.asked("row_key_a").is_empty());
    // Nothing is left.
    block_on(commanded.target.flush_all()).unwrap();
    assert_eq!(commanded.sent.take(), Vec::<Vec<u8>>::new());
}

#[test]
fn a_list_is_flushed_by_age_if_its_sequence_stays() {
    let bed = Bed::start();
    let mut commanded = CommandedSwitch::start(&bed, Profile::Postcards, &[BATCHES_OF_16], 1, true);
    let (profile, append) = (Profile::Postcards, Primitive::Append);
    let holds = |commanded: &CommandedSwitch, sequence| {
        commanded.tofino.set_register("list_count", 1, &[1]);
        commanded.tofino.set_register("list_sequence", 1, &[sequence]);
    };
    let pause = || std::thread::sleep(Duration::from_millis(30));
    holds(&commanded, 5);
    assert_eq!(commanded.flush(append, MINUTE_US, profile), NOTHING);
    pause();
    // Not before its time.
    assert_eq!(commanded.flush(append, MINUTE_US, profile), NOTHING);
    assert_eq!(commanded.flush(append, 20_000, profile), [1]);
    // A batch left between two looks: what is held now is of another one.
    holds(&commanded, 7);
    assert_eq!(commanded.flush(append, 20_000, profile), NOTHING);
    pause();
    holds(&commanded, 8);
    assert_eq!(commanded.flush(append, 20_000, profile), NOTHING);
    pause();
    assert_eq!(commanded.flush(append, 20_000, profile), [1]);
    // A list that was empty meanwhile begins anew.
    holds(&commanded, 9);
    assert_eq!(commanded.flush(append, 20_000, profile), NOTHING);
    pause();
    commanded.tofino.set_register("list_count", 1, &[0]);
    assert_eq!(commanded.flush(append, 20_000, profile), NOTHING);
    holds(&commanded, 9);
    assert_eq!(commanded.flush(append, 20_000, profile), NOTHING);
}

#[test]
fn a_row_is_flushed_by_age_if_key_and_hops_stay() {
    let bed = Bed::start();
    let mut commanded = CommandedSwitch::start(&bed, Profile::Postcards, &[POSTCARDS], 1, true);
    let (profile, postcards) = (Profile::Postcards, Primitive::Postcarding);
    let pause = || std::thread::sleep(Duration::from_millis(30));
    commanded.tofino.set_register("row_head", 9, &[0x0003_0300]);
    commanded.tofino.set_register("row_key_d", 9, &[1]);
    assert_eq!(commanded.flush(postcards, 20_000, profile), NOTHING);
    pause();
    // Another key, then another hop.
    for (register, value) in [("row_key_d", 2), ("row_head", 0x0007_0300)] {
        commanded.tofino.set_register(register, 9, &[value]);
        assert_eq!(commanded.flush(postcards, 20_000, profile), NOTHING, "{register}");
        pause();
    }
    assert_eq!(commanded.flush(postcards, MINUTE_US, profile), NOTHING);
    assert_eq!(commanded.flush(postcards, 20_000, profile), [9]);
    assert!(commanded.asked("row_key_d").iter().all(|row| *row == 9));
}

#[test]
fn a_list_is_of_the_pipe_of_its_collector() {
    let bed = Bed::start();
    // The collector is at a port of pipe 1 of 4.
    let mut commanded =
        CommandedSwitch::start(&bed, Profile::Postcards, &[POSTCARDS, BATCHES_OF_16], 130, true);
    commanded.tofino.with(|state| state.pipes = 4);
    commanded.tofino.set_register("list_count", 0, &[1, 0, 1, 1]);
    commanded.tofino.set_register("list_count", 1, &[0, 1, 0, 0]);
    assert_eq!(commanded.flush(Primitive::Append, 0, Profile::Postcards), [1]);
}

#[test]
fn rows_are_flushed_in_all_pipes() {
    let bed = Bed::start();
    for (pipes, of_cpu) in [(1, 0), (2, 1), (4, 2)] {
        let mut commanded = CommandedSwitch::start(&bed, Profile::Postcards, &[POSTCARDS], 130, true);
        commanded.tofino.with(|state| state.pipes = pipes);
        // Row 3 is held by all pipes, and each holds one that the others do not.
        commanded.tofino.set_register("row_head", 3, &vec![0x0001_0000; pipes]);
        for pipe in 0..pipes {
            let mut heads = vec![0; pipes];
            heads[pipe] = 0x0001_0000;
            commanded.tofino.set_register("row_head", 10 + pipe as u32, &heads);
        }
        block_on(commanded.target.flush_all()).unwrap();
        let sent = commanded.sent.take();
        let is: Vec<(u32, u8)> =
            sent.iter().map(|frame| (state_of(frame, Profile::Postcards), frame[PIPE])).collect();
        let command = |pipe: usize| if pipe == of_cpu { 0 } else { pipe as u8 + 1 };
        let shared = (0..pipes).map(|pipe| (3, command(pipe)));
        let own = (0..pipes).map(|pipe| (10 + pipe as u32, command(pipe)));
        assert_eq!(is, shared.chain(own).collect::<Vec<_>>(), "{pipes} pipes");
        // Nothing is left, and a pipe without rows is sent nothing.
        block_on(commanded.target.flush_all()).unwrap();
        assert_eq!(commanded.sent.take(), Vec::<Vec<u8>>::new(), "{pipes} pipes");
    }
}

#[test]
fn rows_of_two_pipes_have_ages_of_their_own() {
    let bed = Bed::start();
    let mut commanded = CommandedSwitch::start(&bed, Profile::Postcards, &[POSTCARDS], 1, true);
    commanded.tofino.with(|state| state.pipes = 2);
    let pause = || std::thread::sleep(Duration::from_millis(30));
    let flush = |commanded: &mut CommandedSwitch| {
        assert!(!block_on(commanded.target.flush_places(Primitive::Postcarding, 20_000, 0, 1024)).unwrap());
        commanded.sent.take().iter().map(|frame| frame[PIPE]).collect::<Vec<u8>>()
    };
    commanded.tofino.set_register("row_head", 9, &[0x0001_0300, 0x0003_0300]);
    commanded.tofino.set_register("row_key_d", 9, &[1, 2]);
    assert_eq!(flush(&mut commanded), Vec::<u8>::new());
    pause();
    // The one of the CPU port's pipe becomes another path's.
    commanded.tofino.set_register("row_key_d", 9, &[1, 3]);
    assert_eq!(flush(&mut commanded), [1]);
    pause();
    assert_eq!(flush(&mut commanded), [0]);
}

#[test]
fn a_pipe_that_no_command_reaches_is_named_by_its_port() {
    let bed = Bed::start();
    let mut commanded = CommandedSwitch::start(&bed, Profile::Postcards, &[POSTCARDS], 1, false);
    commanded.tofino.with(|state| state.pipes = 4);
    commanded.tofino.set_register("row_head", 9, &[1, 0, 1, 1]);
    let error = block_on(commanded.target.flush_all()).unwrap_err().to_string();
    assert!(error.contains("it did not execute 3 commands"), "{error}");
    assert!(error.contains("Are its recirculation ports enabled (68, 452)?"), "{error}");
}

#[test]
fn columns_leave_in_the_epoch_that_they_hold() {
    let bed = Bed::start();
    let mut commanded = CommandedSwitch::start(&bed, Profile::Sketches, &[SKETCH, BATCHES_OF_16], 1, true);
    // Column 9 at the second place of epochs has 3 reports that have not left; what has left has none.
    commanded.tofino.set_register("column_unsent", 25, &[3]);
    commanded.tofino.set_register("column_epoch", 25, &[7]);
    commanded.tofino.set_register("column_epoch", 26, &[7]);
    commanded.tofino.set_register("list_count", 0, &[1]);
    assert!(!block_on(commanded.target.flush_places(Primitive::SketchMerge, MINUTE_US, 0, 1024)).unwrap());
    let sent = commanded.sent.take();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0][WORK], state_of(&sent[0], Profile::Sketches)), (5, 25));
    // The address of the column, its epoch, and the epoch of its element.
    let of = |at| word(&sent[0], BRIDGE + at);
    assert_eq!([of(14), of(18), of(26), of(36)], [5, 0x190, 7, 7]);
    // One place for each column of each epoch was asked for.
    assert_eq!(commanded.asked("column_unsent"), (0..32).chain([25]).collect::<Vec<_>>());
    assert_eq!(commanded.asked("column_epoch"), [25]);
    block_on(commanded.target.flush_all()).unwrap();
    let sent = commanded.sent.take();
    assert_eq!(sent.iter().map(|frame| frame[WORK]).collect::<Vec<_>>(), [2]);
}

#[test]
fn long_batches_leave_with_the_words_of_an_entry() {
    let bed = Bed::start();
    let mut commanded = CommandedSwitch::start(&bed, Profile::Batches, &[BATCHES_OF_32], 1, true);
    commanded.tofino.set_register("list_count", 3, &[2]);
    block_on(commanded.target.flush_all()).unwrap();
    let sent = commanded.sent.take();
    // Lists 4 and 5 are behind 0 and 1: list 5, of entries of two words.
    let of = |frame: &Vec<u8>| (state_of(frame, Profile::Batches), word(frame, BRIDGE + 27), frame.len());
    assert_eq!(sent.iter().map(of).collect::<Vec<_>>(), [(3, 5, BRIDGE + 39)]);
    assert_eq!(commanded.asked("list_count"), [0, 1, 2, 3, 3]);
}

#[test]
fn a_silent_queue_pair_is_probed_with_the_number_of_its_last_frame() {
    let bed = Bed::start();
    // The port is of pipe 1: what the register holds in other pipes was set, and did not move.
    let mut commanded = CommandedSwitch::start(&bed, Profile::Postcards, &[3], 130, false);
    commanded.tofino.with(|state| state.pipes = 2);
    let look = |commanded: &mut CommandedSwitch, frames| {
        commanded.tofino.count("pair_frames", 1, frames);
        let status = block_on(commanded.target.read_status()).unwrap();
        (status.silent.contains(&0), commanded.sent.take())
    };
    commanded.tofino.set_register("next_psn", 1, &[7, 0x0100_0000]);
    assert_eq!(look(&mut commanded, 5), (false, vec![]));
    let mut psns = Vec::new();
    for frames in 6..9 {
        let (silent, sent) = look(&mut commanded, frames);
        assert_eq!((silent, sent.len()), (frames == 8, 1), "{frames}");
        // Work 0, one copy, queue pair 1.
        assert_eq!(sent[0][WORK..BRIDGE + 1], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]);
        let received =
            Received::parse_packet(&sent[0][BRIDGE + 26 + 14..]).expect("a frame with its checksums");
        psns.push(received.roce.base_header().psn);
        commanded.tofino.set_register("next_psn", 1, &[7, 0x0100_0000 + 0x21]);
    }
    // Modulo 2^24.
    assert_eq!(psns, [Psn::new(0xff_ffff), Psn::new(0x20), Psn::new(0x20)]);
    // An answer.
    commanded.tofino.count("answers", 0, 1);
    assert_eq!(look(&mut commanded, 20), (false, vec![]));
}

#[test]
fn a_switch_that_does_not_take_commands_is_an_error() {
    let bed = Bed::start();
    let mut commanded = CommandedSwitch::start(&bed, Profile::Postcards, &[BATCHES_OF_16], 1, false);
    commanded.tofino.set_register("list_count", 1, &[1]);
    let error = block_on(commanded.target.flush_all()).unwrap_err().to_string();
    assert!(error.contains("it did not execute 1 commands: is `cpu_interface`"), "{error}");
    // It was sent again and again.
    assert_eq!(commanded.sent.take().len(), 5);
    commanded.sent.down.store(true, Relaxed);
    let error = block_on(commanded.target.flush_all()).unwrap_err().to_string();
    assert!(error.contains("0 of 1 commands left by `cpu_interface`: is the interface up?"), "{error}");
}

#[test]
fn without_the_interface_of_its_cpu_port_a_switch_says_what_to_set() {
    let bed = Bed::start();
    let (tofino, config) = switch(&bed, Profile::Postcards);
    let mut config = config_with(config, &[1]);
    let mut target = self::target(&config);
    block_on(target.apply_program(&program(&[3, BATCHES_OF_16]), After::Open)).unwrap();
    let error = block_on(target.flush_all()).unwrap_err().to_string();
    assert!(error.contains("set `cpu_interface` in its table") && error.contains("bf_pci0"), "{error}");
    assert_eq!(target.cannot_command(), Some(error));
    // Nobody is called silent who cannot be asked.
    for frames in 0..6 {
        tofino.count("pair_frames", 1, frames);
        assert!(block_on(target.read_status()).unwrap().silent.is_empty());
    }
    // One that is not there is named, when the first command leaves.
    let Some(Switch::Tofino(p4)) = config.switch.get_mut("b1") else { panic!() };
    p4.cpu_interface = Some("dta-no-cpu".into());
    let mut second = self::target(&config);
    let error = block_on(second.flush_all()).unwrap_err().to_string();
    assert!(error.contains("only one can be bound"), "{error}");
    drop(target);
    let mut target = second;
    assert_eq!(target.cannot_command(), None);
    block_on(target.flush_all()).unwrap();
    tofino.set_register("list_count", 1, &[1]);
    let error = block_on(target.flush_all()).unwrap_err().to_string();
    assert!(
        error.contains("cannot send commands by `cpu_interface`") && error.contains("dta-no-cpu"),
        "{error}"
    );
}
