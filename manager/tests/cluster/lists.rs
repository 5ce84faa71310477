//! Lists that move between collectors, and their readers.

use std::fs::File;
use std::ops::RangeInclusive;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::ground::{Ground, MANAGER, PATIENCE, url};

/// How many lists there are.
pub(crate) const COUNT: u32 = 4;
/// Rounds that may be missing in a list that moved twice, between two writers.
pub(crate) const MOVED: usize = 8;

/// The entry of a round.
pub(crate) fn entry(round: u32) -> [u8; 8] {
    (u64::from(round) << 32 | u64::from(!round)).to_be_bytes()
}

/// A list that is being followed by `dta-collector tail --cluster`.
pub(crate) struct Followed {
    list: u32,
    first: u32,
    child: Child,
}

impl Ground {
    /// Follows a list from now on.
    pub(crate) fn follow_list(&mut self, list: u32) -> Followed {
        let said = File::create(self.said(list)).unwrap();
        let mut followed =
            Followed { list, first: 0, child: self.tail(list, &[]).stdout(said).spawn().unwrap() };
        let begin = Instant::now();
        loop {
            self.load(Duration::from_millis(200));
            if let Some(first) = rounds(&std::fs::read(self.said(list)).unwrap()).first() {
                followed.first = *first;
                return followed;
            }
            assert!(begin.elapsed() < PATIENCE, "list {list} has no entries");
        }
    }

    /// Reports until lists have had time to move, and what follows them has some of what was reported since.
    pub(crate) fn until_moved(&mut self, followed: &[Followed]) {
        self.until_all_go_by_the_newest();
        let (begin, since) = (Instant::now(), self.truth.rounds());
        let goes_on = |ground: &Ground, list: u32| {
            rounds(&std::fs::read(ground.said(list)).unwrap()).last().is_some_and(|last| *last >= since)
        };
        while let Some(stands) = followed.iter().find(|followed| !goes_on(&*self, followed.list)) {
            assert!(begin.elapsed() < PATIENCE, "list {} ends before round {since}", stands.list);
            self.load(Duration::from_millis(200));
        }
    }

    /// Checks that what followed a list has all rounds since then but `most`, each once and in order, and that others who read it later find them.
    pub(crate) fn check_list(&self, Followed { list, first, mut child }: Followed, most: usize) {
        let last = self.truth.rounds() - 1;
        let begin = Instant::now();
        while !rounds(&std::fs::read(self.said(list)).unwrap()).contains(&last) {
            assert!(begin.elapsed() < PATIENCE, "list {list} ends before round {last}");
            assert!(child.try_wait().unwrap().is_none(), "what followed list {list} ended");
            std::thread::sleep(Duration::from_millis(100));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let now = rounds(&std::fs::read(self.said(list)).unwrap());
        assert!(now.is_sorted_by(|a, b| a < b), "list {list}: {now:?}");
        check(list, "followed", now, first..=last, most);
        for arguments in [&["--since", "-10m"][..], &["--once", "--from-start"]] {
            let read = self.tail(list, arguments).output().unwrap();
            assert!(read.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&read.stderr));
            check(list, arguments[0], rounds(&read.stdout), first..=last, most);
        }
    }

    fn tail(&self, list: u32, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", MANAGER, "__collector", "tail", "--store", "rounds"]);
        command.args(["--list", &list.to_string(), "--cluster", &url(&self.nodes)]).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    fn said(&self, list: u32) -> std::path::PathBuf {
        self.folder.path().join(format!("list-{list}"))
    }
}

/// The rounds of the entries that were printed.
fn rounds(said: &[u8]) -> Vec<u32> {
    let lines = std::str::from_utf8(said).unwrap().lines().filter(|line| line.len() == 16);
    let round = |line: &str| {
        let entry = u64::from_str_radix(line, 16).unwrap_or_else(|error| panic!("{line}: {error}"));
        let round = (entry >> 32) as u32;
        assert_eq!(entry, u64::from_be_bytes(self::entry(round)), "{line}");
        round
    };
    lines.map(round).collect()
}

/// Asserts that rounds come once each, and that at most so many of those wanted are missing.
fn check(list: u32, how: &str, mut rounds: Vec<u32>, wanted: RangeInclusive<u32>, most: usize) {
    // Of an epoch in which the list moved, one collector's come before the other's.
    rounds.sort_unstable();
    assert!(rounds.is_sorted_by(|a, b| a < b), "list {list}, {how}: some come twice: {rounds:?}");
    let missing: Vec<u32> = wanted.clone().filter(|round| rounds.binary_search(round).is_err()).collect();
    assert!(missing.len() <= most, "list {list}, {how}: of {wanted:?} are missing {missing:?}");
}
