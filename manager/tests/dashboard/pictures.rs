//! Pictures of a real run for docs/dashboard.md. `scripts/dashboard-pictures` writes them anew; without it, the test makes
//! them in a temporary folder and holds the ones of the document against them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Bed, FLOW, Terminal, svg};

/// Where pictures of the document are.
fn documents() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures")
}

/// Reports of all kinds, some of which cannot land, while pictures are taken.
fn load(bed: &Bed) -> Vec<std::process::Child> {
    let count = ["--count", "400000"];
    let of = |arguments: &[&str], rate: &str| bed.reporter(&[arguments, &count, &["--rate", rate]].concat());
    vec![
        of(
            &[
                "key-write",
                "--store",
                "flows",
                "--key",
                "0a000000",
                "--value",
                "7",
                "--vary",
                "key",
                "--reporter-id",
                "7",
            ],
            "2500",
        ),
        of(
            &[
                "key-increment",
                "--store",
                "bytes",
                "--key",
                "0a000000",
                "--delta",
                "1500",
                "--vary",
                "key",
                "--faults",
                "drop=0.01",
                "--reporter-id",
                "8",
            ],
            "800",
        ),
        of(
            &[
                "append",
                "--store",
                "events",
                "--list",
                "0",
                "--value",
                "0x00000001000000020000000368656c70",
                "--vary",
                "value",
                "--reporter-id",
                "9",
            ],
            "300",
        ),
        // A store that is not there. The one before loses some on the way.
        of(
            &[
                "key-write",
                "--store",
                "77",
                "--key",
                "0b000000",
                "--value",
                "7",
                "--vary",
                "key",
                "--unchecked",
                "--reporter-id",
                "10",
            ],
            "40",
        ),
    ]
}

/// What is pictured: name, title, keys, what the page must show by then.
const PAGES: [(&str, &str, &[&str], &str); 7] = [
    ("stores", "the page Stores", &["2"], "selected store"),
    ("waterfall", "the page Waterfall", &["1"], "✗ dropped.unknown_store"),
    ("sessions", "the page Sessions", &["3"], "queue pair"),
    ("memory", "the page Memory, following writes", &["4", "f"], "▶"),
    ("lists", "the page Lists", &["5"], "entries, to batch"),
    ("query", "the page Query", &["6"], "copies agree"),
    ("help", "the help", &["2", "?"], "any other key closes"),
];

#[test]
#[ignore = "needs tmux"]
fn pictures() {
    let write = std::env::var_os("DTA_WRITE_PICTURES").is_some();
    let mut bed = Bed::start();
    bed.send(&["key-write", "--store", "flows", "--key", FLOW, "--value", "0x68656c6c6f20776f726c6421"]);
    let mut reporters = load(&bed);
    let terminal = Terminal::start(bed.path(), &bed.dashboard(), 80, 24);
    // Until rates and sparklines say something.
    terminal.shows("✗ dropped.unknown_store");
    std::thread::sleep(Duration::from_secs(if write { 30 } else { 3 }));
    let mut taken = Vec::new();
    for (name, title, keys, expected) in PAGES {
        terminal.press(keys);
        if name == "query" {
            terminal.type_text(&format!("flows {FLOW}"));
            terminal.press(&["Enter"]);
        }
        terminal.shows(expected);
        taken.push((name, title, terminal.coloured()));
        match name {
            "memory" => terminal.press(&["f"]),
            "query" => terminal.press(&["Tab"]),
            "help" => terminal.press(&["x"]),
            _ => {}
        }
    }
    bed.kill("collector");
    terminal.shows("Trying again in");
    terminal.until("3 s without an answer", |screen| {
        let (_, time) = screen.split_once("NO ANSWER for ")?;
        (!["0 s", "1 s", "2 s"].iter().any(|early| time.starts_with(early))).then_some(())
    });
    taken.push(("away", "the page Stores while the collector is away", terminal.coloured()));
    terminal.press(&["q"]);
    terminal.shows("left with 0");
    for reporter in &mut reporters {
        let _ = reporter.kill();
        let _ = reporter.wait();
    }

    let temporary = tempfile::tempdir().unwrap();
    let folder = if write { documents() } else { temporary.path().to_owned() };
    std::fs::create_dir_all(&folder).unwrap();
    for (name, title, screen) in &taken {
        let picture = svg::picture(&format!("dta-collector dashboard: {title}"), screen, 80);
        let file = format!("dashboard-{name}.svg");
        std::fs::write(folder.join(&file), &picture).unwrap();
        let of_document = std::fs::read_to_string(documents().join(&file))
            .unwrap_or_else(|error| panic!("docs/pictures/{file}: {error}; run scripts/dashboard-pictures"));
        // Figures differ from run to run; words do not.
        let (now, then) = (words(&picture), words(&of_document));
        let gone: Vec<_> = then.iter().filter(|word| !now.contains(word)).collect();
        assert!(
            gone.is_empty(),
            "docs/pictures/{file} shows what is no longer there; run scripts/dashboard-pictures: {gone:?}"
        );
    }
    let document = std::fs::read_to_string(documents().join("../dashboard.md")).unwrap();
    for (name, _, _) in &taken {
        assert!(
            document.contains(&format!("pictures/dashboard-{name}.svg")),
            "docs/dashboard.md shows {name}"
        );
    }
}

/// The titles, pages and keys of a picture: the first line without its state, the tabs and the last line.
fn words(picture: &str) -> Vec<String> {
    let texts = picture
        .lines()
        .filter_map(|line| line.strip_suffix("</text>")?.split_once('>').map(|(_, text)| text));
    let texts: Vec<&str> = texts.collect();
    let fixed = |text: &&&str| {
        ["? help", "Stores", "Waterfall", "any other key"].iter().any(|word| text.contains(word))
    };
    texts.iter().filter(fixed).map(|text| (*text).to_owned()).collect()
}
