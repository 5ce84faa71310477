//! Configurations of the collectors and the translator.

use std::path::Path;
use std::time::Duration;

use dta_proto::store::StoreSpec;
use dta_translator::config::Config;

use super::ground::{CollectorLink, REPORTER_MAC, RXE, SERVICE, TRANSLATOR_MAC};
use super::reporter;
use super::truth::LISTS;
use crate::ground::NicKind;
use crate::share::Share;
use crate::topology::Topology;

/// Copies of reports, and slots of each store.
pub(super) const COPIES: u8 = 2;
pub(super) const SLOTS: u64 = 1 << 18;
/// The translator's name in the configuration.
pub(super) const TRANSLATOR: &str = "t1";

pub(super) fn parse_switch_config(folder: &Path, text: &str) -> anyhow::Result<Config> {
    let (config, _) = Config::parse(text, &folder.join("translator.toml"))?;
    config.check_values()?;
    Ok(config)
}

/// The configuration of a collector that listens at an address, with epochs of this length, if any.
pub(super) fn collector_file(
    folder: &Path,
    link: &CollectorLink,
    nic: NicKind,
    listen: &str,
    epochs: Option<Duration>,
) -> String {
    let CollectorLink { collector, address, .. } = link;
    let memory = folder.join(format!("{collector}-memory"));
    let history = epochs.map(|_| format!("[history]\ndirectory = '{}'\n", history_path(folder, link)));
    let history = history.unwrap_or_default();
    let (device, nic) = match nic {
        NicKind::Soft => {
            ("soft", format!("[soft]\naddress = '{address}'\nport = 4791\nlink = 'packet:{collector}'\n"))
        }
        NicKind::Rxe => (RXE, format!("[verbs]\naddress = '{address}'\n")),
    };
    format!(
        "[collector]\nname = 'testbed-{collector}'\nlisten = '{listen}'\nmemory = '{}'\ndevice = '{device}'\n\
             [metrics]\nlisten = 'off'\n{history}{nic}{}",
        memory.display(),
        store_tables(epochs)
    )
}

/// Where a collector keeps its history.
pub(super) fn history_path(folder: &Path, link: &CollectorLink) -> String {
    folder.join(format!("{}-history", link.collector)).display().to_string()
}

/// The tables of the stores. Those that begin empty have epochs, if any do.
fn store_tables(epochs: Option<Duration>) -> String {
    let store = |id: u16, name: &str, rest: &str| format!("[[store]]\nid = {id}\nname = '{name}'\n{rest}\n");
    let epoch = epochs.map(|every| format!("\nepoch = '{}s'", every.as_secs())).unwrap_or_default();
    [
        store(
            reporter::LENGTHS,
            "lengths",
            &format!("kind = 'key-write'\nslots = {SLOTS}\nvalue_len = 12\nredundancy = {COPIES}{epoch}"),
        ),
        store(
            reporter::PATHS,
            "paths",
            &format!("kind = 'postcarding'\nslots = {SLOTS}\nhops = 6\nredundancy = {COPIES}{epoch}"),
        ),
        store(
            reporter::FLOWS,
            "flows",
            &format!("kind = 'append'\nlists = {LISTS}\nring = 8192\nbatch_len = 64\nentry_len = 16"),
        ),
        store(
            reporter::COUNTERS,
            "counters",
            &format!("kind = 'key-increment'\nslots = {SLOTS}\nredundancy = {COPIES}"),
        ),
    ]
    .concat()
}

/// The stores that reports go to.
pub(super) fn store_specs() -> anyhow::Result<Vec<StoreSpec>> {
    #[derive(serde::Deserialize)]
    struct Tables {
        store: Vec<StoreSpec>,
    }
    Ok(toml::from_str::<Tables>(&store_tables(None))?.store)
}

pub(super) fn with_stores(topology: &Topology) -> anyhow::Result<Topology> {
    Ok(Topology { stores: store_specs()?, ..topology.clone() })
}

/// The configuration of the translator. It flushes nothing by age: the truth counts frames.
pub(super) fn translator_file(
    folder: &Path,
    links: &[CollectorLink],
    addresses: &[String],
    control: &str,
) -> anyhow::Result<String> {
    let ports: Vec<String> = links.iter().map(|link| link.port.to_string()).collect();
    let macs: Vec<String> = links.iter().map(|link| format!("'{}'", link.mac)).collect();
    Ok(format!(
        "[translator]\nlisten = '{SERVICE}:40040'\nsource = '{SERVICE}'\nmac = '{}'\n{}\
         [translator.flush]\nappend_ms = 0\npostcarding_ms = 0\nsketch_merge_ms = 0\n\
         [switch.{TRANSLATOR}]\ntype = 'bmv2'\ncontrol = '{control}'\nstate = '{}'\ncollector_ports = [{}]\npostcard_rows = 256\n\
         collector_macs = [{}]\nstations = [{{ mac = '{}', port = 1 }}]\n",
        TRANSLATOR_MAC,
        Share::with_collectors(links.len()).collector_tables(addresses, &store_specs()?),
        folder.join("switch.json").display(),
        ports.join(", "),
        macs.join(", "),
        REPORTER_MAC,
    ))
}

#[cfg(test)]
mod tests {
    use dta_switch::matches::Masked;
    use dta_translator::config::Switch;

    use super::super::ground::{COLLECTORS, reporter_at};
    use super::super::reporter::{Filter, OF_DROP, OF_FLOW};
    use super::super::truth::CapturedTraffic;
    use super::*;

    /// Frames to three stations, the last of which has no entry, and to all.
    fn traffic() -> CapturedTraffic {
        let frame = |to: u8| [&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, 9, 8, 0][..], &[0; 46]].concat();
        let all = [&[0xff; 6][..], &frame(1)[6..]].concat();
        CapturedTraffic::from_frames(vec![frame(1), frame(1), frame(2), frame(2), frame(3), all], 1)
    }

    #[test]
    fn the_reporter_is_configured_for_each_packet_and_for_one_network() {
        let folder = Path::new("/nowhere");
        let of = |filter| {
            let wiring = reporter_at("127.0.0.1:1");
            let config =
                parse_switch_config(folder, &reporter::reporter_table(&wiring, &traffic(), filter)).unwrap();
            let (p4, settings) = config.reporter_of(&wiring.config_name()).unwrap().unwrap();
            assert_eq!((p4.stations.len(), settings.flood_macs.len()), (2, 1));
            assert_eq!(settings.reports.len() as u64, OF_FLOW + OF_DROP);
            settings
        };
        let each = of(Filter::None);
        assert_eq!((each.every_packet, each.interval_mask, each.latency_mask), (true, 0, 0));
        assert_eq!((each.watch.len(), each.watch[0].source), (1, Masked::default()));
        let some = of(Filter::Network(std::net::Ipv4Addr::new(10, 0, 7, 0)));
        assert_eq!(
            (some.every_packet, some.interval_mask, some.latency_mask),
            (false, u64::MAX << 30, 0xfc00_0000)
        );
        let ends: Vec<_> =
            some.watch.iter().map(|of| (of.source.to_string(), of.destination.to_string())).collect();
        let network = || "10.0.7.0/24".to_owned();
        assert_eq!(ends, [(network(), "0.0.0.0/0".into()), ("0.0.0.0/0".into(), network())]);
    }

    #[test]
    fn two_collectors_have_half_of_the_keys_each_and_a_list() {
        let folder = Path::new("/nowhere");
        let addresses = ["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        for count in [1, 2] {
            let text =
                translator_file(folder, &COLLECTORS[..count], &addresses[..count], "127.0.0.1:3").unwrap();
            let config = parse_switch_config(folder, &text).unwrap();
            let translator = config.translator_of(TRANSLATOR).unwrap();
            assert_eq!(translator.collector.count(), count);
            let Switch::Bmv2(p4) = config.find_switch(TRANSLATOR).unwrap() else { panic!() };
            assert_eq!((p4.collector_ports.len(), p4.collector_macs.len()), (count, count));
            let buckets: Vec<_> =
                translator.collector.iter().map(|c| c.buckets.map(|buckets| buckets.to_string())).collect();
            match count {
                1 => assert_eq!(buckets, [None]),
                _ => assert_eq!(buckets, [Some("0-127".to_owned()), Some("128-255".to_owned())]),
            }
        }
    }
}
