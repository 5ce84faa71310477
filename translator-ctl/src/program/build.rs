//! Builds a program from the collectors' grants and the configuration.

use std::collections::{BTreeMap, BTreeSet};

use dta_proto::buckets::Copies;
use dta_proto::program::{
    CheckError, DataPlaneEntry, FlushDelay, Lists, Mode, Primitive, Program, ReportService, SketchReporter,
    Store, Version0,
};
use dta_proto::telemetry;
use dta_proto::wire::dta::Addressing;

use dta_proto::store;

use super::grant::Grant;

/// The configured part of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetProgramSettings {
    /// Addresses of the collectors, by index, for messages.
    pub collectors: BTreeMap<u8, String>,
    /// Key buckets of each collector, by index; in a cluster none, as grants say which it has.
    pub buckets: Vec<Copies>,
    /// Whether collectors come and go: then all have the same stores, and none is the first.
    pub is_cluster: bool,
    pub service: ReportService,
    /// Whether to restrict targets to what a switch does.
    pub reference: bool,
    /// Milliseconds that append batches, postcard rows and sketch columns may be held; 0 = no limit.
    pub flush_ms: [(Primitive, u32); 3],
    /// Stores of version-0 primitives by name. The default is the only store of its kind at the first
    /// collector, if there is exactly one; INT stores do not count.
    pub version0: Vec<(Primitive, String)>,
    /// Configured bits of sketch-merge reporters: store name, reporter, bit.
    pub sketch_reporters: Vec<(String, u16, u8)>,
}

/// Why grants and configuration do not make a program, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(String);

impl From<CheckError> for BuildError {
    fn from(error: CheckError) -> BuildError {
        BuildError(format!("the configuration cannot be used: {error}"))
    }
}

/// Computes what a switch should hold from the collectors' grants, by index; `None` for one that has not
/// answered.
///
/// # Errors
/// A [`BuildError`] that names the cause: two contradictory grants, or the configuration.
pub fn build_program(
    grants: &[Option<&Grant>],
    wanted: &TargetProgramSettings,
) -> Result<Program, BuildError> {
    let mut program = Program::default();
    program.set(DataPlaneEntry::Service(wanted.service.clone()));
    program.set(DataPlaneEntry::Mode(Mode { reference: wanted.reference }));
    for (primitive, after_ms) in wanted.flush_ms {
        let after_ms = if wanted.reference { 0 } else { after_ms };
        program.set(DataPlaneEntry::Flush(FlushDelay { primitive, after_ms }));
    }
    let granted: Vec<&Store> = grants.iter().flatten().flat_map(|grant| &grant.stores).collect();
    let all_stores: Vec<Store> = if wanted.is_cluster {
        granted.into_iter().cloned().collect()
    } else {
        same_replicas(&granted, wanted)?;
        let mut stores: Vec<Store> =
            granted.into_iter().map(|store| with_buckets(store, wanted)).collect::<Result<_, _>>()?;
        // A collector may have only further copies, and nothing of a store without replicas.
        stores.retain(|store| store.buckets != Copies::NONE);
        stores
    };
    let lists: Vec<&Lists> = grants.iter().flatten().flat_map(|grant| &grant.lists).collect();
    offered_once(&all_stores, &lists, wanted)?;
    for grant in grants.iter().flatten() {
        grant
            .program_entries()
            .filter(|entry| !matches!(entry, DataPlaneEntry::Store(_)))
            .for_each(|entry| program.set(entry));
    }
    all_stores.iter().for_each(|store| program.set(DataPlaneEntry::Store(store.clone())));
    // Shared stores once: others refer to them by id.
    let mut stores: Vec<&Store> = all_stores.iter().collect();
    let mut ids = BTreeSet::new();
    stores.retain(|store| ids.insert(store.spec.id));
    let of_kind = |primitive| -> Vec<&Store> {
        stores.iter().copied().filter(|store| store.spec.kind.primitive() == primitive).collect()
    };
    // A store missing in all sessions may be at a collector that has not answered.
    let all_heard = grants.iter().all(Option::is_some);
    let named = |name: &str, primitive, what: &dyn Fn() -> String| {
        let of_kind = of_kind(primitive);
        match store::find_store(of_kind.iter(), |store| &store.spec, name) {
            Some(store) => Ok(Some(store.spec.id)),
            None if all_heard => Err(unknown_store(name, what(), &of_kind)),
            None => Ok(None),
        }
    };
    for primitive in Primitive::ALL {
        if !primitive.in_version0() {
            continue; // version 0 has none
        }
        let chosen = match wanted.version0.iter().find(|(p, _)| *p == primitive) {
            Some((_, name)) => named(name, primitive, &|| format!("version 0 {primitive}"))?,
            // Only at the first collector: what is accepted must not depend on who answers.
            None => {
                match of_kind(primitive).iter().filter(|s| takes_unnamed(s, wanted)).collect::<Vec<_>>()[..] {
                    [only] => Some(only.spec.id),
                    _ => None,
                }
            }
        };
        if let Some(store) = chosen {
            program.set(DataPlaneEntry::Version0(Version0 { primitive, store }));
        }
    }
    for &(ref name, reporter, bit) in &wanted.sketch_reporters {
        let what = || format!("sketch reporter {reporter}");
        if let Some(store) = named(name, Primitive::SketchMerge, &what)? {
            program.set(DataPlaneEntry::SketchReporter(SketchReporter { store, reporter, bit }));
        }
    }
    program.entries().try_for_each(DataPlaneEntry::validate)?;
    Ok(program)
}

/// Whether a store qualifies as default for reports that name none.
fn takes_unnamed(store: &Store, wanted: &TargetProgramSettings) -> bool {
    (store.collector == 0 || wanted.is_cluster) && !telemetry::is_telemetry_store(&store.spec.name)
}

/// The store with its collector's buckets, if keys can be shared.
fn with_buckets(store: &Store, wanted: &TargetProgramSettings) -> Result<Store, BuildError> {
    let primitive = store.spec.kind.primitive();
    if primitive.addressing() != Addressing::Key {
        return Ok(Store { buckets: Copies::default(), ..store.clone() });
    }
    let replicas = store.buckets.copy_count();
    let placed = wanted.buckets.iter().map(Copies::copy_count).max().unwrap_or(1);
    // Copies are spread over as many collectors as there are.
    let (setting, least) = match primitive {
        Primitive::KeyWrite => ("spread_copies = true".to_owned(), replicas.min(2)),
        _ => (format!("replicas = {replicas}"), replicas),
    };
    if placed < least {
        return Err(BuildError(format!(
            "store `{}` has {setting} at its collectors, which takes {least} collectors, but the configuration places {placed} \
             copy of each bucket: let the `buckets` of each [[translator.collector]] be a list by copy, such as [\"0-127\", \
             \"128-255\"] for one of two and [\"128-255\", \"0-127\"] for the other",
            store.spec.name
        )));
    }
    let buckets = wanted.buckets.get(usize::from(store.collector)).copied().unwrap_or_default();
    Ok(Store { buckets: buckets.first_copies(replicas), ..store.clone() })
}

/// Rejects a store whose replicas differ between collectors.
fn same_replicas(granted: &[&Store], wanted: &TargetProgramSettings) -> Result<(), BuildError> {
    for (i, b) in granted.iter().enumerate() {
        let other = {
            let is_one = |a: &&&Store| (a.spec.id, &a.spec.name) == (b.spec.id, &b.spec.name);
            granted[..i].iter().filter(is_one).find(|a| a.buckets.copy_count() != b.buckets.copy_count())
        };
        if let Some(a) = other {
            let of = |store: &Store| {
                let address = wanted.collectors.get(&store.collector).cloned().unwrap_or_default();
                format!("{} at {address}", store.buckets.copy_count())
            };
            return Err(BuildError(format!(
                "store `{}` must have each key at the same number of collectors, but has {} and {}: give it the same \
                 `spread_copies` or `replicas` at both",
                b.spec.name,
                of(a),
                of(b)
            )));
        }
    }
    Ok(())
}

/// The ranges of a store's lists at its collector: first, and the number after the last.
fn list_ranges(lists: &[&Lists], store: &Store) -> Vec<(u64, u64)> {
    let of = |l: &&&Lists| (l.store, l.collector) == (store.spec.id, store.collector);
    let range = |l: &&Lists| (u64::from(l.first), u64::from(l.first) + u64::from(l.count));
    lists.iter().filter(of).map(range).collect()
}

/// Whether two stores are parts of one, with no key or list in both.
fn are_disjoint_parts(a: &Store, b: &Store, lists: &[&Lists]) -> bool {
    a.spec == b.spec
        && match a.spec.kind.primitive().addressing() {
            Addressing::Key | Addressing::Column => a.buckets.common_copy(&b.buckets).is_none(),
            Addressing::List => {
                let (mine, theirs) = (list_ranges(lists, a), list_ranges(lists, b));
                !mine.iter().any(|m| theirs.iter().any(|t| m.0 < t.1 && t.0 < m.1))
            }
        }
}

/// Rejects a name or id used by stores of two collectors, unless they are parts of one.
fn offered_once(
    stores: &[Store],
    lists: &[&Lists],
    wanted: &TargetProgramSettings,
) -> Result<(), BuildError> {
    for (i, b) in stores.iter().enumerate() {
        for a in stores[..i].iter().filter(|a| a.collector != b.collector && !are_disjoint_parts(a, b, lists))
        {
            let (name, id) = (&b.spec.name, b.spec.id);
            let what = match (a.spec.name == *name, a.spec.id == id) {
                (true, true) => format!("store `{name}` (id {id})"),
                (true, false) => format!("a store named `{name}`"),
                (false, true) => format!("a store of id {id} (`{}` and `{name}`)", a.spec.name),
                (false, false) => continue,
            };
            let address =
                |store: &Store| wanted.collectors.get(&store.collector).cloned().unwrap_or_default();
            return Err(BuildError(format!(
                "the collector at {} and the one at {} both offer {what}: rename it and change its id at one of \
                 them, name the stores to use at each, or let them share it ([[translator.collector]] with \
                 `address` and `stores`, `lists` or `buckets`; a sketch is at one collector)",
                address(a),
                address(b)
            )));
        }
    }
    Ok(())
}

fn unknown_store(name: &str, what: String, have: &[&Store]) -> BuildError {
    let have = match have {
        [] => "no such store".to_string(),
        stores => stores.iter().map(|s| format!("`{}`", s.spec.name)).collect::<Vec<_>>().join(", "),
    };
    BuildError(format!("configuration names store `{name}` for {what}, but the session has {have}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::store::StoreSpec;

    /// The entries of the frame vectors as one collector's grant, with shifted store ids and other names.
    fn grant(collector: u8, beyond: u16) -> Grant {
        let sample: Program =
            serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
        let mut grant = Grant {
            session: None,
            queue_pairs: Vec::new(),
            stores: Vec::new(),
            goes_by: Default::default(),
            lists: Vec::new(),
        };
        for entry in sample.entries() {
            if let DataPlaneEntry::Store(store) = entry {
                let name = format!("{}{}", store.spec.name, if beyond == 0 { "" } else { "x" });
                let spec = StoreSpec { id: store.spec.id + beyond, name, ..store.spec.clone() };
                grant.stores.push(Store { collector, spec, ..store.clone() });
            }
        }
        grant
    }

    fn wanted(version0: &[(Primitive, &str)]) -> TargetProgramSettings {
        TargetProgramSettings {
            collectors: [(0, "a:1".into()), (1, "b:1".into())].into(),
            buckets: vec![Copies::default(); 2],
            is_cluster: false,
            service: ReportService { address: std::net::Ipv4Addr::LOCALHOST.into(), port: 40040 },
            reference: false,
            flush_ms: [(Primitive::Append, 1), (Primitive::Postcarding, 1), (Primitive::SketchMerge, 1)],
            version0: version0.iter().map(|(primitive, name)| (*primitive, (*name).into())).collect(),
            sketch_reporters: Vec::new(),
        }
    }

    fn version0(program: &Program, primitive: Primitive) -> Option<u16> {
        program.entries().find_map(|entry| match entry {
            DataPlaneEntry::Version0(v0) if v0.primitive == primitive => Some(v0.store),
            _ => None,
        })
    }

    #[test]
    fn version_0_goes_to_the_first_collector_unless_another_store_is_named() {
        let (first, second) = (grant(0, 0), grant(1, 20));
        let plain = wanted(&[]);
        let of = |grants: &[Option<&Grant>], wanted: &TargetProgramSettings| {
            version0(&build_program(grants, wanted).unwrap(), Primitive::KeyWrite)
        };
        // The rule does not depend on who answers.
        assert_eq!(of(&[Some(&first), Some(&second)], &plain), Some(1));
        assert_eq!(of(&[Some(&first), None], &plain), Some(1));
        assert_eq!(of(&[None, Some(&second)], &plain), None);
        let named = wanted(&[(Primitive::KeyWrite, "kwx")]);
        assert_eq!(of(&[Some(&first), Some(&second)], &named), Some(21));
        // It may be at the collector that has not answered.
        assert_eq!(of(&[Some(&first), None], &named), None);
        let nowhere = wanted(&[(Primitive::KeyWrite, "nowhere")]);
        let error = build_program(&[Some(&first), Some(&second)], &nowhere).unwrap_err().to_string();
        assert!(error.contains("`nowhere`") && error.contains("`kw`, `kwx`"), "{error}");
        assert_eq!(of(&[Some(&first), None], &nowhere), None);
    }

    #[test]
    fn a_store_for_int_is_never_the_one_of_reports_that_name_none() {
        let mut first = grant(0, 0);
        let mut more = first.stores[0].clone();
        (more.spec.id, more.spec.name) = (30, "int-values".into());
        first.stores.push(more);
        let of = |grant: &Grant| {
            version0(&build_program(&[Some(grant)], &wanted(&[])).unwrap(), Primitive::KeyWrite)
        };
        assert_eq!(of(&first), Some(1));
        // A second candidate leaves it undecided.
        first.stores.last_mut().unwrap().spec.name = "values".into();
        assert_eq!(of(&first), None);
    }

    #[test]
    fn stores_that_two_collectors_share_are_one() {
        let (first, second) = (grant(0, 0), grant(1, 0));
        let lists = |collector, first| Lists { store: 2, collector, first, count: 4, positions: Vec::new() };
        let with = |grant: &Grant, wanted: &[u16], first| {
            let collector = grant.stores[0].collector;
            let stores = grant.stores.iter().filter(|s| wanted.contains(&s.spec.id)).cloned().collect();
            Grant { stores, lists: vec![lists(collector, first)], ..grant.clone() }
        };
        let shared = TargetProgramSettings {
            buckets: ["0-127", "128-255"].map(|text| text.parse().unwrap()).to_vec(),
            ..wanted(&[(Primitive::KeyWrite, "kw")])
        };
        let a = with(&first, &[1, 2, 3, 4, 5], 0);
        let program = build_program(&[Some(&a), Some(&with(&second, &[1, 2, 3, 4], 4))], &shared).unwrap();
        let parts = |id| program.store_parts(id).map(|part| part.buckets.to_string()).collect::<Vec<_>>();
        for id in [1, 3, 4] {
            assert_eq!(parts(id), ["0-127", "128-255"], "{id}");
        }
        assert_eq!((parts(2), parts(5)), (vec!["0-255".to_string(); 2], vec!["0-255".to_string()]));
        assert_eq!(version0(&program, Primitive::KeyWrite), Some(1));
        // One collector per sketch, list and bucket, and one layout for all parts.
        let refused = |second: &Grant, wanted: &TargetProgramSettings, what: &str| {
            let error = build_program(&[Some(&a), Some(second)], wanted).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("`buckets`"), "{error}");
        };
        refused(&with(&second, &[5], 4), &shared, "store `sm` (id 5)");
        refused(&with(&second, &[2], 3), &shared, "store `ap` (id 2)");
        let twice = TargetProgramSettings {
            buckets: ["0-128", "128-255"].map(|text| text.parse().unwrap()).to_vec(),
            ..shared.clone()
        };
        refused(&with(&second, &[1], 4), &twice, "store `kw` (id 1)");
        let mut other = with(&second, &[1], 4);
        let store::StoreKind::KeyWrite { slots, .. } = &mut other.stores[0].spec.kind else { panic!() };
        *slots *= 2;
        refused(&other, &shared, "store `kw` (id 1)");
        // Keys of a collector that has not answered are unassigned.
        let program = build_program(&[Some(&a), None], &shared).unwrap();
        assert_eq!(
            program.store_parts(1).map(|part| part.buckets.to_string()).collect::<Vec<_>>(),
            ["0-127"]
        );
    }

    #[test]
    fn copies_that_cannot_be_spread_are_refused_in_words() {
        let (mut first, mut second) = (grant(0, 0), grant(1, 0));
        for grant in [&mut first, &mut second] {
            grant.stores.retain(|store| store.spec.id == 1);
        }
        first.stores[0].buckets = Copies::with_all_buckets(2);
        let twice = TargetProgramSettings { buckets: vec![Copies::with_all_buckets(2); 2], ..wanted(&[]) };
        let refusal = |grants: [&Grant; 2], wanted: &TargetProgramSettings| {
            build_program(&grants.map(Some), wanted).unwrap_err().to_string()
        };
        let error = refusal([&first, &second], &twice);
        assert!(error.contains("2 at a:1 and 1 at b:1") && error.contains("`spread_copies`"), "{error}");
        second.stores[0].buckets = Copies::with_all_buckets(2);
        let once = TargetProgramSettings { buckets: vec![Copies::with_all_buckets(1); 2], ..wanted(&[]) };
        let error = refusal([&first, &second], &once);
        let words = ["store `kw` has spread_copies = true", "2 collectors", "1 copy", "`buckets`"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }

    #[test]
    fn what_two_collectors_offer_is_refused_with_both_addresses() {
        let refusal = |change: fn(&mut StoreSpec)| {
            let (first, mut second) = (grant(0, 0), grant(1, 20));
            change(&mut second.stores[0].spec);
            build_program(&[Some(&first), Some(&second)], &wanted(&[])).unwrap_err().to_string()
        };
        for (error, what) in [
            (refusal(|spec| spec.id = 2), "a store of id 2 (`ap` and `kwx`)"),
            (refusal(|spec| spec.name = "ap".into()), "a store named `ap`"),
            (refusal(|spec| (spec.id, spec.name) = (1, "kw".into())), "store `kw` (id 1)"),
        ] {
            assert!(
                error.starts_with(&format!("the collector at a:1 and the one at b:1 both offer {what}")),
                "{error}"
            );
            assert!(error.contains("`stores`"), "{error}");
        }
    }
}
