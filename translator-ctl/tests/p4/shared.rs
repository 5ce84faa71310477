//! Stores that two collectors share, on a switch, and what is flushed of them.

use std::collections::{BTreeMap, BTreeSet};

use dta_proto::program::{
    DataPlaneEntry, EntryKey, Lists, Primitive, Program, ProgramQueuePair, ProgramSession, Store,
};
use dta_switch::P4Switch;
use dta_switch::pipeline::TRANSLATOR;
use dta_switch::tables::{Holds, Item, Match, Tables};
use dta_switch::translator::{
    FLUSH_COLUMN, FLUSH_LIST, FLUSH_ROW, FORGET_COLUMN, FORGET_LIST, FORGET_ROW, SET_LIST, SET_PSN,
};
use dta_switch::{After, Target, TargetError};
use dta_translator::config::Config;
use dta_translator::setup;

use crate::chaos::Chaos;
use crate::profiles::target;
use crate::switch::number;
use crate::{Bed, attempt, block_on};

/// The stores of the vectors, whose keys the first collector has up to the bucket before `at`, and the second from
/// there on. A `Some(false)` is a second collector whose session has ended, and `None` one that has not answered.
fn program(at: u8, second: Option<bool>) -> Program {
    let sample: Program =
        serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
    let mut program = Program::default();
    let [mine, theirs] =
        [format!("0-{}", at - 1), format!("{at}-255")].map(|buckets| buckets.parse().unwrap());
    for entry in Vec::<DataPlaneEntry>::from(sample) {
        match entry {
            DataPlaneEntry::QueuePair(mut pair) => {
                pair.source.mac = "02:00:00:00:00:02".parse().unwrap();
                pair.destination.mac = "02:00:00:00:00:01".parse().unwrap();
                if second == Some(true) {
                    let other =
                        ProgramQueuePair { collector: 1, local_qpn: pair.local_qpn + 2, ..pair.clone() };
                    program.set(DataPlaneEntry::QueuePair(other));
                }
                program.set(DataPlaneEntry::QueuePair(pair));
            }
            DataPlaneEntry::Store(store) if [1, 3, 4].contains(&store.spec.id) => {
                let address = store.address + (1 << 40);
                let other = Store { collector: 1, buckets: theirs, address, ..store.clone() };
                if second.is_some() {
                    program.set(DataPlaneEntry::Store(other));
                }
                program.set(DataPlaneEntry::Store(Store { buckets: mine, ..store }));
            }
            DataPlaneEntry::Store(store) if store.spec.id == 2 => {
                let lists = Lists { store: 2, collector: 1, first: 6, count: 2, positions: Vec::new() };
                let address = store.address + (1 << 40);
                if second.is_some() {
                    program.set(DataPlaneEntry::Lists(lists));
                    program.set(DataPlaneEntry::Store(Store { collector: 1, address, ..store.clone() }));
                }
                program.set(DataPlaneEntry::Store(store));
            }
            other => program.set(other),
        }
    }
    program
}

fn apply(config: &Config, program: &Program) {
    let (mut target, mut after) = (target(config), After::Renewal);
    if let Err(error) = attempt(&mut target, program, &mut after) {
        // It was never programmed.
        assert!(matches!(error.error, TargetError::Restarted), "{error}");
        attempt(&mut target, program, &mut after).unwrap();
    }
    assert_eq!(block_on(target.required_changes(program, After::Renewal)).unwrap(), []);
}

/// Rows of the tables that say where something lies.
fn rows(bed: &Bed, config: &Config) -> BTreeSet<String> {
    let text = bed.text(config);
    let is_one = |line: &&str| ["region", "lists", "departure"].iter().any(|table| line.starts_with(table));
    text.lines().filter(is_one).map(str::to_owned).collect()
}

/// Programs a switch with two collectors that share stores, step by step, and looks at its rows.
pub(crate) fn is_programmed(bed: &Bed, config: &Config) {
    block_on(setup::clear_switch(config, "b1")).unwrap();
    let _ = std::fs::remove_file(bed.kept());
    let alone: BTreeSet<String> = [
        "region 0x1 0x0..0x7f: use_region(0x0, 0x100000000, 0x1001)",
        "region 0x3 0x0..0x7f: use_region(0x1, 0x300000000, 0x1003)",
        "region 0x4 0x0..0x7f: use_region(0x0, 0x400000000, 0x1004)",
        "region 0x5 0x0..0xff: use_region(0x0, 0x500000000, 0x1005)",
        "lists 0x2 0x0..0x1: use_list(0x0, 0x0, 0x200000000, 0x1002)",
        "lists 0x2 0x4..0x5: use_list(0xfffffffe, 0x0, 0x200000000, 0x1002)",
        "lists 0x6 0x0..0x1: use_list(0x4, 0x0, 0x600000000, 0x1006)",
        "departure 0x0: depart(0x10)",
        "departure 0x1: depart(0x20)",
    ]
    .map(str::to_owned)
    .into();
    let theirs = [
        "region 0x1 0x80..0xff: use_region(0x2, 0x10100000000, 0x1001)",
        "region 0x3 0x80..0xff: use_region(0x3, 0x10300000000, 0x1003)",
        "region 0x4 0x80..0xff: use_region(0x2, 0x10400000000, 0x1004)",
        "lists 0x2 0x6..0x7: use_list(0x0, 0x2, 0x10200000000, 0x1002)",
    ];
    let way = ["departure 0x2: depart(0x30)", "departure 0x3: depart(0x40)"];
    let with = |more: &[&str]| -> BTreeSet<String> {
        alone.iter().cloned().chain(more.iter().map(|row| (*row).to_owned())).collect()
    };

    // Keys of a collector that has not answered have no row: they are dropped under that name.
    apply(config, &program(128, None));
    assert_eq!(rows(bed, config), alone);
    // It answers: its parts come, and what is there stays.
    apply(config, &program(128, Some(true)));
    assert_eq!(rows(bed, config), with(&[&theirs[..], &way].concat()));
    // Its session ends: there is no path to it, which is another drop reason.
    apply(config, &program(128, Some(false)));
    assert_eq!(rows(bed, config), with(&theirs));
    apply(config, &program(128, Some(true)));
    // Buckets change hands.
    apply(config, &program(64, Some(true)));
    let now = rows(bed, config);
    for row in [
        "region 0x1 0x0..0x3f: use_region(0x0, 0x100000000, 0x1001)",
        "region 0x1 0x40..0xff: use_region(0x2, 0x10100000000, 0x1001)",
    ] {
        assert!(now.contains(row), "{row}: {now:?}");
    }
    assert_eq!(now.len(), with(&[&theirs[..], &way].concat()).len());
}

#[test]
fn stores_that_collectors_share_have_a_row_for_each_part() {
    let bed = Bed::start();
    let config = bed.config("postcard_rows = 64");
    is_programmed(&bed, &config);
}

/// What the commands since the last look were.
fn take_commands(bed: &Bed) -> Vec<Vec<Vec<u8>>> {
    bed.switch.with(|state| std::mem::take(&mut state.commands))
}

fn of(commands: &[Vec<Vec<u8>>], command: u8) -> usize {
    commands.iter().filter(|values| values[0] == number(command.into())).count()
}

#[test]
fn what_is_held_for_a_collector_stays_when_another_one_comes() {
    let bed = Bed::start();
    let config = bed.config("postcard_rows = 64");
    apply(&config, &program(128, None));
    assert_eq!(of(&take_commands(&bed), SET_PSN), 2);
    apply(&config, &program(128, Some(true)));
    let commands = take_commands(&bed);
    assert_eq!((of(&commands, SET_PSN), of(&commands, FORGET_ROW), of(&commands, FORGET_COLUMN)), (2, 0, 0));
    // A new store there gets places that may have been another one's.
    let mut without = program(128, Some(true));
    for key in
        [0, 1].map(|n| without.store_parts(4).nth(n).cloned().map(DataPlaneEntry::Store).unwrap().entry_key())
    {
        without.remove(&key);
    }
    apply(&config, &without);
    take_commands(&bed);
    apply(&config, &program(128, Some(true)));
    assert!(of(&take_commands(&bed), FORGET_ROW) >= 64);
}

#[test]
fn columns_of_sketches_and_rows_of_shared_stores_are_flushed_once_each() {
    let bed = Bed::start();
    let config = bed.config("postcard_rows = 64");
    apply(&config, &program(128, Some(true)));
    take_commands(&bed);
    let mut target = target(&config);
    block_on(async {
        assert!(target.flush_places(Primitive::SketchMerge, 5, 0, 20).await.unwrap());
        assert!(!target.flush_places(Primitive::SketchMerge, 5, 20, 20).await.unwrap());
    });
    let commands = take_commands(&bed);
    // 16 columns at the places of 2 epochs.
    let places: BTreeSet<_> = commands.iter().map(|values| (values[3].clone(), values[4].clone())).collect();
    assert_eq!((of(&commands, FLUSH_COLUMN), commands.len(), places.len()), (32, 32, 32));
    block_on(target.flush_all()).unwrap();
    let commands = take_commands(&bed);
    assert_eq!((of(&commands, FLUSH_COLUMN), of(&commands, FLUSH_ROW)), (32, 64));
}

/// The lists of store 2 that two collectors have, whose grants say that each ring is at 100.
fn with_lists(at: &[(u8, u32, u32)], generation: u64) -> Program {
    let mut program = program(128, Some(true));
    for first in [0, 4, 6] {
        program.remove(&EntryKey::Lists(2, first));
    }
    for (collector, first, count) in at.iter().copied() {
        let positions = (first..first + count).map(|list| (list, 100)).collect();
        program.set(DataPlaneEntry::Lists(Lists { store: 2, collector, first, count, positions }));
    }
    for (collector, generation) in [(0, generation), (1, 1)] {
        program.set(DataPlaneEntry::Session(ProgramSession { collector, generation }));
    }
    program
}

#[test]
fn a_list_goes_on_at_each_collector_where_it_was_there() {
    let bed = Bed::start();
    let config = bed.config("postcard_rows = 64");
    let (_, p4) = config.find_switch("b1").unwrap().p4_config().unwrap();
    let chaos = Chaos::new(&TRANSLATOR, 0);
    let mut target = P4Switch::new(
        Box::new(chaos.clone()),
        p4.translator_options("b1", &config.translator_of("b1").unwrap()),
    );
    // Which lists are flushed, whose new places are cleared as others had them, and which are set to 100.
    let mut apply = |at: &[(u8, u32, u32)], generation, after| {
        chaos.with(|state| state.registers.clear());
        block_on(target.apply_program(&with_lists(at, generation), after)).unwrap();
        let of = |wanted| {
            let all = chaos.with(|state| state.registers.clone());
            let is_one = |(command, _, store, _): &(u8, u8, u16, u32)| (*command, *store) == (wanted, 2);
            let lists = all.into_iter().filter(|(key, _)| is_one(key));
            lists.map(|((.., list), value)| (list, value)).collect::<Vec<_>>()
        };
        let set: Vec<u32> =
            of(SET_LIST).into_iter().map(|(list, value)| (value == 100).then_some(list).unwrap()).collect();
        let flushed: Vec<u32> = of(FLUSH_LIST).into_iter().map(|(list, _)| list).collect();
        let cleared: Vec<u32> = of(FORGET_LIST).into_iter().map(|(list, _)| list).collect();
        (flushed, cleared, set)
    };
    let none = Vec::new;
    assert_eq!(apply(&[(0, 0, 8)], 1, After::Open), (none(), none(), (0..8).collect()));
    // Some move; those that stay go on.
    let (moved, more) = ([(0, 0, 4), (1, 4, 4)], [(0, 0, 3), (1, 3, 5)]);
    assert_eq!(apply(&moved, 1, After::Open), (vec![4, 5, 6, 7], none(), vec![4, 5, 6, 7]));
    assert_eq!(apply(&more, 1, After::Renewal), (vec![3], none(), vec![3]));
    // They come back, and go on.
    assert_eq!(apply(&[(0, 0, 8)], 1, After::Renewal), (vec![3, 4, 5, 6, 7], none(), none()));
    assert_eq!(apply(&moved, 1, After::Open), (vec![4, 5, 6, 7], none(), none()));
    // Where somebody else may have written meanwhile, the grant says where they go on; also of those that come later.
    assert_eq!(apply(&moved, 5, After::Open), (none(), none(), (0..4).collect()));
    assert_eq!(apply(&[(0, 0, 8)], 5, After::Open), (vec![4, 5, 6, 7], vec![4, 5, 6, 7], vec![4, 5, 6, 7]));
}

/// The place of each list of store 2, by its rows.
fn places_of_lists(tables: &Tables) -> BTreeMap<u32, u32> {
    let mut places = BTreeMap::new();
    for (item, holds) in tables.iter() {
        if let (Item::Row { table, key, .. }, Holds::Action { params, .. }) = (item, holds)
            && table.ends_with("lists")
            && let [Match::Exact(2), Match::Range { low, high }] = key[..]
        {
            places
                .extend((low as u32..=high as u32).map(|list| (list, (params[0] as u32).wrapping_add(list))));
        }
    }
    places
}

#[test]
fn lists_that_move_while_the_switch_fails_go_on_in_the_end() {
    let bed = Bed::start();
    let config = bed.config("postcard_rows = 64");
    let (_, p4) = config.find_switch("b1").unwrap().p4_config().unwrap();
    for seed in 0..100 {
        let chaos = Chaos::new(&TRANSLATOR, seed);
        let _ = std::fs::remove_file(bed.kept());
        let target = || {
            P4Switch::new(
                Box::new(chaos.clone()),
                p4.translator_options("b1", &config.translator_of("b1").unwrap()),
            )
        };
        let steps = [
            (&[(0, 0, 8)][..], 1, After::Open),
            (&[(0, 0, 4), (1, 4, 4)], 1, After::Renewal),
            (&[(0, 0, 8)], 1, After::Open),
            (&[(0, 0, 2), (1, 2, 6)], 2, After::Open),
            (&[(0, 0, 8)], 2, After::Renewal),
        ];
        for (at, generation, mut after) in steps {
            let want = with_lists(at, generation);
            chaos.with(|state| state.one_in = 3);
            assert!((0..1000).any(|_| attempt(&mut target(), &want, &mut after).is_ok()), "{seed}");
            chaos.with(|state| state.one_in = 0);
            assert_eq!(block_on(target().required_changes(&want, after)).unwrap(), [], "{seed}");
            // Each has a place of its own, in which its sequence was set.
            let (places, sequences) =
                chaos.with(|state| (places_of_lists(&state.tables), state.sequences.clone()));
            assert_eq!(
                (places.len(), places.values().collect::<BTreeSet<_>>().len()),
                (8, 8),
                "{seed}: {places:?}"
            );
            for (list, place) in places {
                assert_eq!(sequences.get(&place), Some(&100), "{seed}: list {list} at {at:?}");
            }
        }
    }
}
