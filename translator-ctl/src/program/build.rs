//! A program from what the collectors grant and the configuration.

use dta_proto::program::{
    CheckError, Entry, Flush, Mode, Primitive, Program, Service, SketchReporter, Store, Version0,
};
use dta_proto::telemetry;

use dta_proto::store;

use super::grant::Grant;

/// The part of a program that configuration decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Addresses of the collectors, by index, for messages.
    pub collectors: Vec<String>,
    /// Where reports are taken.
    pub service: Service,
    /// What a switch does, and no more.
    pub reference: bool,
    /// Milliseconds that append batches, postcard rows and sketch columns may be held; 0 = never by time.
    pub flush_ms: [(Primitive, u32); 3],
    /// Stores of version-0 primitives by name. A primitive not named takes the only store of its
    /// kind at the first collector, where there is one; those for INT do not count.
    pub version0: Vec<(Primitive, String)>,
    /// Bits of sketch-merge reporters: store name, reporter, bit.
    pub sketch_reporters: Vec<(String, u16, u8)>,
}

/// Why what collectors grant and the configuration do not make a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// An entry that cannot be held.
    #[error("the configuration cannot be used: {0}")]
    Entry(#[from] CheckError),
    /// Two collectors offer what only one can.
    #[error(
        "the collector at {} and the one at {} both offer {what}, and a store is at one collector: give it another name and id in one of \
         them, or name the stores that are wanted of each ([[translator.collector]] with `address` and `stores`)", collectors[0], collectors[1]
    )]
    OfferedTwice {
        /// The store, by name, id or both.
        what: String,
        /// Addresses of both.
        collectors: [String; 2],
    },
    /// Configuration names a store that no session has.
    #[error("configuration names store `{name}` for {what}, but the session has {have}")]
    UnknownStore {
        /// Name in configuration.
        name: String,
        /// What for.
        what: String,
        /// Names that the session has for it.
        have: String,
    },
}

/// Computes what a switch should hold from what the collectors grant, by index; `None` for one that
/// has not been heard.
///
/// # Errors
/// A [`BuildError`] that names what is at fault: two grants that contradict each other, or the configuration.
pub fn build(grants: &[Option<&Grant>], wanted: &Wanted) -> Result<Program, BuildError> {
    let mut program = Program::default();
    program.set(Entry::Service(wanted.service.clone()));
    program.set(Entry::Mode(Mode { reference: wanted.reference }));
    for (primitive, after_ms) in wanted.flush_ms {
        let after_ms = if wanted.reference { 0 } else { after_ms };
        program.set(Entry::Flush(Flush { primitive, after_ms }));
    }
    for grant in grants.iter().flatten() {
        grant.entries().for_each(|entry| program.set(entry));
    }
    let stores: Vec<&Store> = grants.iter().flatten().flat_map(|grant| &grant.stores).collect();
    offered_once(&stores, wanted)?;
    let of_kind = |primitive| -> Vec<&Store> {
        stores.iter().copied().filter(|store| store.spec.kind.primitive() == primitive).collect()
    };
    // A store that no session has may be at a collector that has not been heard.
    let all_heard = grants.iter().all(Option::is_some);
    let named = |name: &str, primitive, what: &dyn Fn() -> String| {
        let of_kind = of_kind(primitive);
        match store::named(of_kind.iter(), |store| &store.spec, name) {
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
            // Of the first collector alone: what is taken does not depend on who answers.
            None => match of_kind(primitive).iter().filter(|s| takes_unnamed(s)).collect::<Vec<_>>()[..] {
                [only] => Some(only.spec.id),
                _ => None,
            },
        };
        if let Some(store) = chosen {
            program.set(Entry::Version0(Version0 { primitive, store }));
        }
    }
    for &(ref name, reporter, bit) in &wanted.sketch_reporters {
        let what = || format!("sketch reporter {reporter}");
        if let Some(store) = named(name, Primitive::SketchMerge, &what)? {
            program.set(Entry::SketchReporter(SketchReporter { store, reporter, bit }));
        }
    }
    program.entries().try_for_each(Entry::check)?;
    Ok(program)
}

/// Whether a store can be the one of reports that name none.
fn takes_unnamed(store: &Store) -> bool {
    store.collector == 0 && !telemetry::is_store(&store.spec.name)
}

/// Refuses a name or id that stores of two collectors have.
fn offered_once(stores: &[&Store], wanted: &Wanted) -> Result<(), BuildError> {
    for (i, b) in stores.iter().enumerate() {
        for a in stores[..i].iter().filter(|a| a.collector != b.collector) {
            let (name, id) = (&b.spec.name, b.spec.id);
            let what = match (a.spec.name == *name, a.spec.id == id) {
                (true, true) => format!("store `{name}` (id {id})"),
                (true, false) => format!("a store named `{name}`"),
                (false, true) => format!("a store of id {id} (`{}` and `{name}`)", a.spec.name),
                (false, false) => continue,
            };
            let address = |store: &Store| {
                wanted.collectors.get(usize::from(store.collector)).cloned().unwrap_or_default()
            };
            return Err(BuildError::OfferedTwice { what, collectors: [address(a), address(b)] });
        }
    }
    Ok(())
}

fn unknown_store(name: &str, what: String, have: &[&Store]) -> BuildError {
    let have = match have {
        [] => "no such store".to_string(),
        stores => stores.iter().map(|s| format!("`{}`", s.spec.name)).collect::<Vec<_>>().join(", "),
    };
    BuildError::UnknownStore { name: name.into(), what, have }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::store::StoreSpec;

    /// The entries of the frame vectors as what a collector grants, its store ids so much higher
    /// and other names.
    fn grant(collector: u8, beyond: u16) -> Grant {
        let sample: Program =
            serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
        let mut grant =
            Grant { session: None, queue_pairs: Vec::new(), stores: Vec::new(), lists: Vec::new() };
        for entry in sample.entries() {
            if let Entry::Store(store) = entry {
                let name = format!("{}{}", store.spec.name, if beyond == 0 { "" } else { "x" });
                let spec = StoreSpec { id: store.spec.id + beyond, name, ..store.spec.clone() };
                grant.stores.push(Store { collector, spec, ..store.clone() });
            }
        }
        grant
    }

    fn wanted(version0: &[(Primitive, &str)]) -> Wanted {
        Wanted {
            collectors: vec!["a:1".into(), "b:1".into()],
            service: Service { address: std::net::Ipv4Addr::LOCALHOST.into(), port: 40040 },
            reference: false,
            flush_ms: [(Primitive::Append, 1), (Primitive::Postcarding, 1), (Primitive::SketchMerge, 1)],
            version0: version0.iter().map(|(primitive, name)| (*primitive, (*name).into())).collect(),
            sketch_reporters: Vec::new(),
        }
    }

    fn version0(program: &Program, primitive: Primitive) -> Option<u16> {
        program.entries().find_map(|entry| match entry {
            Entry::Version0(v0) if v0.primitive == primitive => Some(v0.store),
            _ => None,
        })
    }

    #[test]
    fn version_0_goes_to_the_first_collector_unless_another_store_is_named() {
        let (first, second) = (grant(0, 0), grant(1, 20));
        let plain = wanted(&[]);
        let of = |grants: &[Option<&Grant>], wanted: &Wanted| {
            version0(&build(grants, wanted).unwrap(), Primitive::KeyWrite)
        };
        // Whoever answers, the rule is the same.
        assert_eq!(of(&[Some(&first), Some(&second)], &plain), Some(1));
        assert_eq!(of(&[Some(&first), None], &plain), Some(1));
        assert_eq!(of(&[None, Some(&second)], &plain), None);
        let named = wanted(&[(Primitive::KeyWrite, "kwx")]);
        assert_eq!(of(&[Some(&first), Some(&second)], &named), Some(21));
        // It may be at the one that has not been heard.
        assert_eq!(of(&[Some(&first), None], &named), None);
        let nowhere = wanted(&[(Primitive::KeyWrite, "nowhere")]);
        let error = build(&[Some(&first), Some(&second)], &nowhere).unwrap_err().to_string();
        assert!(error.contains("`nowhere`") && error.contains("`kw`, `kwx`"), "{error}");
        assert_eq!(of(&[Some(&first), None], &nowhere), None);
    }

    #[test]
    fn a_store_for_int_is_never_the_one_of_reports_that_name_none() {
        let mut first = grant(0, 0);
        let mut more = first.stores[0].clone();
        (more.spec.id, more.spec.name) = (30, "int-values".into());
        first.stores.push(more);
        let of = |grant: &Grant| version0(&build(&[Some(grant)], &wanted(&[])).unwrap(), Primitive::KeyWrite);
        assert_eq!(of(&first), Some(1));
        // Another second one leaves it open.
        first.stores.last_mut().unwrap().spec.name = "values".into();
        assert_eq!(of(&first), None);
    }

    #[test]
    fn what_two_collectors_offer_is_refused_with_both_addresses() {
        let refusal = |change: fn(&mut StoreSpec)| {
            let (first, mut second) = (grant(0, 0), grant(1, 20));
            change(&mut second.stores[0].spec);
            build(&[Some(&first), Some(&second)], &wanted(&[])).unwrap_err().to_string()
        };
        for (told, what) in [
            (refusal(|spec| spec.id = 2), "a store of id 2 (`ap` and `kwx`)"),
            (refusal(|spec| spec.name = "ap".into()), "a store named `ap`"),
            (refusal(|spec| (spec.id, spec.name) = (1, "kw".into())), "store `kw` (id 1)"),
        ] {
            assert!(
                told.starts_with(&format!("the collector at a:1 and the one at b:1 both offer {what}")),
                "{told}"
            );
            assert!(told.contains("`stores`"), "{told}");
        }
    }
}
