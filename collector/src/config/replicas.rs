//! How many collectors hold each key of a store.

use dta_proto::buckets::MAX_COPIES;
use dta_proto::wire::dta::Replicas;

use super::ConfigError;
use super::file::StoreTable;

/// How many collectors a store's table asks for, for each key: of a key-write store one or, with `spread_copies`, one
/// for each copy.
pub(super) fn table_replicas(table: &StoreTable) -> Result<u8, ConfigError> {
    let fail = |key: &str, value: String, must: &str| {
        Err(ConfigError::invalid_value(format!("store.{key}"), value, must))
    };
    let is_spread = table.spread_copies.unwrap_or_default();
    let copies = table.spec.redundancy().unwrap_or(1);
    match (table.spec.kind.primitive().replicas(), table.replicas) {
        (Replicas::Copies, None) if is_spread && copies < 2 => fail(
            "spread_copies",
            "true".into(),
            "false where redundancy is 1: each copy goes to a collector of its own",
        ),
        (Replicas::Copies, None) => Ok(if is_spread { copies } else { 1 }),
        (_, _) if table.spread_copies.is_some() => fail(
            "spread_copies",
            is_spread.to_string(),
            "left out but for key-write; key-increment and postcarding have `replicas`",
        ),
        // Part of the layout, which is checked as a whole.
        (Replicas::Counts, Some(replicas)) => Ok(replicas),
        (Replicas::Whole, Some(replicas)) => {
            if !(1..=MAX_COPIES).contains(&usize::from(replicas)) {
                return fail("replicas", replicas.to_string(), "1 to 4");
            }
            Ok(replicas)
        }
        (_, Some(replicas)) => fail(
            "replicas",
            replicas.to_string(),
            "left out but for key-increment and postcarding; key-write has `spread_copies`",
        ),
        (_, None) => Ok(1),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn parse(kind: &str, more: &str) -> Result<Config, String> {
        let shape = match kind {
            "key-write" => "slots = 8\nvalue_len = 12",
            "postcarding" => "slots = 8\nhops = 6",
            "key-increment" => "slots = 8",
            _ => "lists = 1\nring = 8\nbatch_len = 64\nentry_len = 8",
        };
        let text = format!("[[store]]\nid = 1\nname = \"s\"\nkind = \"{kind}\"\n{shape}\n{more}\n");
        Config::parse_toml(&text, Path::new("t.toml"))
            .map(|(config, _)| config)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_store_asks_for_as_many_collectors_as_it_can_have() {
        for (kind, more, replicas) in [
            ("key-write", "redundancy = 2", None),
            ("key-write", "redundancy = 1\nspread_copies = false", None),
            ("key-write", "redundancy = 2\nspread_copies = true", Some(2)),
            ("key-write", "redundancy = 4\nspread_copies = true", Some(4)),
            ("key-increment", "redundancy = 1\nreplicas = 1", None),
            ("key-increment", "redundancy = 1\nreplicas = 2", Some(2)),
            ("postcarding", "redundancy = 1\nreplicas = 4", Some(4)),
        ] {
            let config = parse(kind, more).unwrap();
            assert_eq!(config.replicas.get("s").copied(), replicas, "{kind} {more}");
            let written = config.to_toml().unwrap();
            assert_eq!(Config::parse_toml(&written, Path::new("t.toml")).unwrap().0, config, "{written}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        for (kind, more, words) in [
            ("key-write", "redundancy = 1\nspread_copies = true", "spread_copies is true"),
            ("key-write", "redundancy = 2\nreplicas = 2", "replicas is 2"),
            ("key-increment", "redundancy = 1\nreplicas = 0", "replicas is 0"),
            ("postcarding", "redundancy = 1\nreplicas = 5", "replicas is 5"),
            ("postcarding", "redundancy = 1\nspread_copies = true", "`replicas`"),
            ("append", "replicas = 2", "replicas is 2"),
            ("append", "spread_copies = true", "spread_copies is true"),
        ] {
            let error = parse(kind, more).unwrap_err();
            assert!(error.contains(words) && error.contains("line "), "{kind} {more}: {error}");
        }
    }
}
