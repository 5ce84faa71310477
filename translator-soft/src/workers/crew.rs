//! One worker's ends of the rings to and from the others.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dta_proto::wire::dta::{Body, Report};

use super::handover::{CAPACITY, Message, Receiver, Sender, Stage, Taken, View, ring};
use super::steering::{self, MAX_WORKERS};

/// Messages that are taken from one ring before the next is looked at.
const TURN: usize = 256;
/// Messages that are copied out of a ring at once.
const GROUP: usize = 32;

/// One worker among several.
pub struct Crew {
    own: usize,
    workers: usize,
    /// Reports that others have to judge, by worker; `None` for this one.
    to_judge: Vec<Option<Sender>>,
    /// Reports that others have to execute.
    to_execute: Vec<Option<Sender>>,
    /// Reports that this one has to execute, and to judge, by who found them.
    execute: Vec<Receiver>,
    judge: Vec<Receiver>,
    /// Times that reporters began anew, of all workers.
    restarts: Arc<AtomicU32>,
    /// What this one has added to them.
    restarts_here: u32,
    /// Bit n: worker n was handed something since it was last asked.
    news: u32,
    /// [`GROUP`] messages that were taken last.
    room: Box<[Taken]>,
}

/// A look at all rings of a crew from outside.
pub struct CrewView(Vec<View>);

impl CrewView {
    /// Whether no report is on its way between two workers, if none of them takes new ones in. A report may
    /// make one more step after the first, so this has to be seen several times in a row.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(View::is_empty)
    }
}

/// The ends of so many workers, at most [`MAX_WORKERS`].
pub fn crew(workers: usize) -> (Vec<Crew>, CrewView) {
    let workers = workers.clamp(1, MAX_WORKERS);
    let restarts = Arc::new(AtomicU32::new(0));
    let mut all: Vec<Crew> = (0..workers)
        .map(|own| Crew {
            own,
            workers,
            to_judge: Vec::new(),
            to_execute: Vec::new(),
            execute: Vec::new(),
            judge: Vec::new(),
            restarts: Arc::clone(&restarts),
            restarts_here: 0,
            news: 0,
            room: vec![Taken::EMPTY; GROUP].into_boxed_slice(),
        })
        .collect();
    let mut views = Vec::new();
    for from in 0..workers {
        for to in 0..workers {
            if from == to {
                all[from].to_judge.push(None);
                all[from].to_execute.push(None);
                continue;
            }
            let ((judge, judged), (execute, executed)) = (ring(), ring());
            views.extend([judged.view(), executed.view()]);
            all[from].to_judge.push(Some(judge));
            all[from].to_execute.push(Some(execute));
            all[to].judge.push(judged);
            all[to].execute.push(executed);
        }
    }
    (all, CrewView(views))
}

impl Crew {
    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Whether `reports` reports can be taken in, wherever they have to go. If not, it is first to be waited
    /// for the others. What they have to execute waits for nobody, so it goes on.
    pub fn has_room(&mut self, reports: usize) -> bool {
        let mut senders = self.to_judge.iter_mut().chain(&mut self.to_execute).flatten();
        senders.all(|sender| sender.room(reports) >= reports)
    }

    /// How many reports the others have handed over that wait here.
    pub fn waiting(&mut self) -> usize {
        self.execute.iter_mut().chain(&mut self.judge).map(Receiver::waiting).sum()
    }

    /// The workers that were handed something since this was last asked: bit n for worker n.
    pub fn take_news(&mut self) -> u32 {
        std::mem::take(&mut self.news)
    }

    #[inline]
    pub(crate) fn judge_of(&self, report: &Report<'_>, source: Ipv4Addr) -> Option<usize> {
        let worker = steering::judge(report, source, self.workers);
        (worker != self.own).then_some(worker)
    }

    #[inline]
    pub(crate) fn executor_of(&self, body: &Body<'_>) -> Option<usize> {
        let worker = steering::executor(body, self.workers);
        (worker != self.own).then_some(worker)
    }

    /// Hands a report over, for which there has to be [room](Crew::has_room).
    #[inline]
    pub(crate) fn hand_over(&mut self, worker: usize, message: &Message<'_>) {
        let senders = match message.stage {
            Stage::Judge => &mut self.to_judge,
            Stage::Execute | Stage::ExecuteUnnumbered => &mut self.to_execute,
        };
        if let Some(Some(sender)) = senders.get_mut(worker) {
            sender.put(message);
        }
    }

    /// Lets the others see what was handed over.
    pub(crate) fn publish(&mut self) {
        for (worker, senders) in self.to_judge.iter_mut().zip(&mut self.to_execute).enumerate() {
            for sender in [senders.0, senders.1].into_iter().flatten() {
                self.news |= u32::from(sender.publish()) << worker;
            }
        }
    }

    /// Times that reporters of all workers began anew. `here` is how often those of this one did.
    #[inline]
    pub(crate) fn restarts(&mut self, here: u32) -> u32 {
        if here != self.restarts_here {
            let more = here.wrapping_sub(self.restarts_here);
            self.restarts_here = here;
            self.restarts.fetch_add(more, Ordering::Relaxed);
        }
        // What is said after a reporter began anew comes by way of a ring, which orders this, too.
        self.restarts.load(Ordering::Relaxed)
    }

    /// Hands what waits here to `take`, [some](GROUP) of one ring at once: first what is to be executed, then what
    /// is to be judged, as far as there is room for what comes of that. How many there were.
    pub(crate) fn take_in(&mut self, mut take: impl FnMut(&[Taken], &mut Crew)) -> usize {
        let mut taken = 0;
        for judges in [false, true] {
            for ring in 0..self.workers - 1 {
                let most = TURN.min(CAPACITY);
                if judges && !self.has_room(most) {
                    break;
                }
                let mut all = std::mem::take(if judges { &mut self.judge } else { &mut self.execute });
                if let Some(receiver) = all.get_mut(ring) {
                    let count = receiver.waiting().min(most);
                    // The room is this crew's; it is out of it while others are handed to.
                    let mut room = std::mem::take(&mut self.room);
                    let mut left = count;
                    while left > 0 {
                        let group = receiver.take(&mut room[..left.min(GROUP)]);
                        if group == 0 {
                            break;
                        }
                        take(&room[..group], self);
                        left -= group;
                    }
                    self.room = room;
                    if count > 0 {
                        // What comes of them is seen before their places are free.
                        self.publish();
                        receiver.give_back();
                    }
                    taken += count;
                }
                *(if judges { &mut self.judge } else { &mut self.execute }) = all;
            }
        }
        taken
    }
}
