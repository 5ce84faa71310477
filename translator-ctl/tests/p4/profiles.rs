//! The profiles of the program for Tofino: which stores each supports, and the resulting rows.

use dta_proto::program::{DataPlaneEntry, Primitive, Program};
use dta_proto::store::{SlotKeys, StoreKind};
use dta_switch::P4Switch;
use dta_switch::bfruntime::schema_from_bfrt;
use dta_switch::tables::{Holds, Item, Match};
use dta_switch::tofino::Profile;
use dta_switch::tofino::{cannot_write, registers_of, required_schema};
use dta_switch::{After, Target as _};
use dta_translator::config::{Config, Switch};
use dta_translator::setup;
use dta_translator::targets::p4_switch;

use crate::tofino::{FakeTofino, program_of_profile};
use crate::{Bed, block_on, tofino_config};

/// Stores of the vectors, by their number: key-write, batches of 32 bytes, postcards, a sketch, and batches of 16 bytes.
const KEY_WRITE: u16 = 1;
pub(crate) const BATCHES_OF_32: u16 = 2;
pub(crate) const POSTCARDS: u16 = 4;
pub(crate) const SKETCH: u16 = 5;
pub(crate) const BATCHES_OF_16: u16 = 6;

/// The program of the vectors, with these stores alone.
pub(crate) fn program(stores: &[u16]) -> Program {
    let sample: Program =
        serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
    let entries = Vec::<DataPlaneEntry>::from(sample).into_iter().filter_map(|entry| match entry {
        DataPlaneEntry::QueuePair(mut pair) => {
            pair.source.mac = "02:00:00:00:00:02".parse().unwrap();
            pair.destination.mac = "02:00:00:00:00:01".parse().unwrap();
            Some(DataPlaneEntry::QueuePair(pair))
        }
        DataPlaneEntry::Store(store) => {
            stores.contains(&store.spec.id).then_some(DataPlaneEntry::Store(store))
        }
        DataPlaneEntry::Lists(lists) => stores.contains(&lists.store).then_some(DataPlaneEntry::Lists(lists)),
        DataPlaneEntry::Version0(version0) => {
            stores.contains(&version0.store).then_some(DataPlaneEntry::Version0(version0))
        }
        other => Some(other),
    });
    Program::from(entries.collect::<Vec<_>>())
}

pub(crate) fn target(config: &Config) -> P4Switch {
    block_on(async { p4_switch(config, "b1").unwrap().unwrap() })
}

/// The configuration with this profile of the switch, as it is written and read.
fn with_profile(mut config: Config, profile: Profile) -> Config {
    let Some(Switch::Tofino(p4)) = config.switch.get_mut("b1") else { panic!() };
    p4.profile = Some(profile);
    let text = crate::toml_of(&config);
    assert!(text.contains(&format!("profile = \"{}\"", profile.name())), "{text}");
    let (config, _) = Config::parse(&text, std::path::Path::new("t.toml")).unwrap();
    config.check_values().unwrap();
    config
}

/// A switch with a profile, and a configuration that says so.
pub(crate) fn switch(bed: &Bed, profile: Profile) -> (FakeTofino, Config) {
    let tofino = FakeTofino::start(&program_of_profile(profile));
    let config = with_profile(tofino_config(bed, &tofino, ""), profile);
    (tofino, config)
}

#[test]
fn each_profile_has_all_that_is_used() {
    for profile in Profile::ALL {
        let info = serde_json::from_value(program_of_profile(profile)).unwrap();
        schema_from_bfrt(&info).check_required(required_schema(profile)).unwrap();
        for register in registers_of(profile) {
            assert!(info.table_by_name(register).is_some(), "{register} of {}", profile.name());
        }
    }
}

#[test]
fn each_profile_takes_its_own_stores_and_names_those_for_the_others() {
    let bed = Bed::start();
    let with_keys: &[_] = &[Profile::Postcards, Profile::Sketches];
    // Key-increment is 3.
    let makers = [
        (KEY_WRITE, with_keys),
        (3, with_keys),
        (BATCHES_OF_16, with_keys),
        (POSTCARDS, &[Profile::Postcards]),
        (SKETCH, &[Profile::Sketches]),
        (BATCHES_OF_32, &[Profile::Batches]),
    ];
    let values_of_4 =
        StoreKind::KeyWrite { slots: 64, value_len: 4, redundancy: 1, keys: Default::default() };
    for profile in Profile::ALL {
        assert_eq!(cannot_write(profile, &values_of_4).is_none(), profile == Profile::Postcards);
        let (tofino, config) = switch(&bed, profile);
        let mut target = target(&config);
        for (store, makers) in makers {
            let lacks = block_on(target.required_changes(&program(&[store]), After::Open));
            if makers.contains(&profile) {
                assert!(lacks.unwrap().len() > 2, "{store} by {}", profile.name());
                continue;
            }
            let error = lacks.unwrap_err().to_string();
            let names: Vec<_> = makers.iter().map(|other| format!("\"{}\"", other.name())).collect();
            let end = format!(
                "which the profile \"{}\" of the program for Tofino does not support; profiles that do: {}; \
                 name the stores that it should write in `stores`",
                profile.name(),
                names.join(", ")
            );
            assert!(error.contains("cannot be written by this switch") && error.ends_with(&end), "{error}");
        }
        assert_eq!(tofino.with(|state| state.requests), 0);
    }
}

#[test]
fn a_switch_of_another_profile_is_refused() {
    let bed = Bed::start();
    for profile in Profile::ALL {
        for other in Profile::ALL.into_iter().filter(|other| *other != profile) {
            let (tofino, _) = switch(&bed, other);
            let config = with_profile(tofino_config(&bed, &tofino, ""), profile);
            let error = block_on(setup::program_switch(&config, "b1")).unwrap_err().to_string();
            let words = format!(
                "its program is of the profile \"{}\", and `profile` of the configuration is \"{}\"",
                other.name(),
                profile.name()
            );
            // A store of the collector may be refused before the switch is asked.
            assert!(error.contains(&words) || error.contains("cannot be written by this switch"), "{error}");
            let error = block_on(target(&config).held_program()).unwrap_err().to_string();
            assert!(error.contains(&words), "{error}");
            assert_eq!(tofino.with(|state| state.requests), 0);
        }
    }
    let text = "[switch.a]\ntype = 'bmv2'\ncontrol = 'x:1'\nprofile = 'sketches'\n";
    let (config, _) = Config::parse(text, std::path::Path::new("t.toml")).unwrap();
    let error = config.check_values().unwrap_err().to_string();
    assert!(error.contains("switch.a.profile is \"sketches\", but must be left out"), "{error}");
}

/// The parameters of a store's row.
fn parameters(target: &mut P4Switch, store: u16) -> (String, Vec<u128>) {
    let tables = block_on(target.runtime_mut().read()).unwrap().unwrap();
    let row = Item::Row { table: "store".into(), key: vec![Match::Exact(store.into())], order: 0 };
    match tables.get(&row) {
        Some(Holds::Action { name, params }) => (name.clone(), params.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn inline_keys_are_given_to_bmv2_and_to_the_profiles_with_keys() {
    let bed = Bed::start();
    let tofinos = [Profile::Postcards, Profile::Sketches].map(|profile| switch(&bed, profile));
    let configs = std::iter::once(bed.config("")).chain(tofinos.iter().map(|(_, config)| config.clone()));
    for config in configs {
        let mut entries = Vec::<DataPlaneEntry>::from(program(&[KEY_WRITE]));
        for entry in &mut entries {
            if let DataPlaneEntry::Store(store) = entry
                && let StoreKind::KeyWrite { keys, .. } = &mut store.spec.kind
            {
                *keys = SlotKeys::Inline;
                store.length = store.spec.region_len();
            }
        }
        let mut target = target(&config);
        block_on(target.apply_program(&Program::from(entries), After::Open)).unwrap();
        // Two copies, three words of value, the key before them, 65,536 slots of 32 bytes.
        let (name, params) = parameters(&mut target, KEY_WRITE);
        assert_eq!((name.as_str(), &params[1..]), ("key_write_store", &[2, 3, 1, 0xffff, 5][..]));
    }
}

#[test]
fn long_batches_are_programmed_as_the_program_takes_them() {
    let bed = Bed::start();
    let (tofino, config) = switch(&bed, Profile::Batches);
    let (mut target, want) = (target(&config), program(&[BATCHES_OF_32]));
    block_on(target.apply_program(&want, After::Open)).unwrap();
    assert_eq!(block_on(target.apply_program(&want, After::Open)).unwrap(), []);
    // Rings of 4 begin at multiples of 2^(4 + 3). Entries of two words, three in a batch.
    let (name, params) = parameters(&mut target, BATCHES_OF_32);
    assert_eq!((name.as_str(), &params[1..]), ("append_store", &[8, 3, 3, 5, 2, 3, 0][..]));
    assert_eq!(tofino.register("list_sequence", 1), Some(vec![0, 0, 0, 5]));
}

#[test]
fn sketches_are_programmed_as_the_program_takes_them_and_forgotten_with_their_store() {
    let bed = Bed::start();
    let (tofino, config) = switch(&bed, Profile::Sketches);
    let (mut target, want) = (target(&config), program(&[SKETCH]));
    block_on(target.apply_program(&want, After::Open)).unwrap();
    assert_eq!(block_on(target.apply_program(&want, After::Open)).unwrap(), []);
    // 2 rows, sum, 2 reporters, one of them the others; 16 columns of 2 epochs, in 16 bytes each, from the first place on.
    let (name, params) = parameters(&mut target, SKETCH);
    assert_eq!((name.as_str(), &params[1..]), ("sketch_merge_store", &[2, 0, 2, 1, 4, 16, 1, 4, 0][..]));
    let is_forgotten = |tofino: &FakeTofino| {
        ["column_used", "column_unsent"]
            .map(|name| (0..33).map(|column| tofino.register(name, column)).collect::<Vec<_>>())
    };
    // All of its places, and none behind them: another store may have been there.
    let mut all = vec![Some(vec![0]); 32];
    all.push(None);
    assert_eq!(is_forgotten(&tofino), [all.clone(), all]);
    // What was there counts as held until it leaves.
    let counts = [("egress_accepted", 5, 9), ("egress_dropped", 17, 4), ("superseded_by_number", 2, 1)];
    for (name, index, count) in counts.into_iter().chain([("emitted_reports", 5 * 16 + 3, 1)]) {
        tofino.count(name, index, count);
    }
    let nodes = block_on(target.statistics()).unwrap();
    let of = |name: &str| {
        let name = name.replace("SKETCH", Primitive::SketchMerge.canonical_name());
        nodes[0].counters.iter().find(|counter| counter.name == name).map(|counter| counter.value)
    };
    for (name, value) in [
        ("SKETCH.accepted", 9),
        ("SKETCH.emitted", 3),
        ("SKETCH.superseded", 2),
        ("SKETCH.held", 4),
        ("dropped.epoch_old", 4),
    ] {
        assert_eq!(of(name), Some(value), "{name}");
    }
}
