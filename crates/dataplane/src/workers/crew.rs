//! One worker's ends of the rings to and from the others.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dta_proto::wire::dta::{DtaBody, DtaReport};

use crate::reporters::PackedSocketAddr;

use super::handover::{
    CAPACITY, HandoverMessage, HandoverReceiver, MessageBuffer, Sender, Stage, View, new_ring,
};
use super::steering::{self, MAX_WORKERS};

/// Messages taken from one ring before moving to the next.
const TURN: usize = 256;
/// Messages copied out of a ring at once.
const GROUP: usize = 32;

pub struct Crew {
    own: usize,
    workers: usize,
    /// Reports for others to judge, by worker; `None` for this one.
    to_judge: Vec<Option<Sender>>,
    /// Reports for others to execute.
    to_execute: Vec<Option<Sender>>,
    /// Reports for this one to execute and to judge, by sender.
    execute: Vec<HandoverReceiver>,
    judge: Vec<HandoverReceiver>,
    /// Reporter restarts, all workers together.
    restarts: Arc<AtomicU32>,
    /// This worker's share of them.
    restarts_here: u32,
    /// Bit n: worker n was handed something since the last [`Crew::take_news`].
    news: u32,
    /// The [`GROUP`] messages taken last.
    room: Box<[MessageBuffer]>,
}

/// An outside view of all rings of a crew.
pub struct CrewView(Vec<View>);

impl CrewView {
    /// Whether no report is in transit between two workers, provided none accepts new ones. A report may take
    /// one more step after the first, so this must hold several times in a row.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(View::is_empty)
    }
}

/// The ends for this many workers, at most [`MAX_WORKERS`].
pub fn build_crew(workers: usize) -> (Vec<Crew>, CrewView) {
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
            room: vec![MessageBuffer::EMPTY; GROUP].into_boxed_slice(),
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
            let ((judge, judged), (execute, executed)) = (new_ring(), new_ring());
            views.extend([judged.outside_view(), executed.outside_view()]);
            all[from].to_judge.push(Some(judge));
            all[from].to_execute.push(Some(execute));
            all[to].judge.push(judged);
            all[to].execute.push(executed);
        }
    }
    (all, CrewView(views))
}

impl Crew {
    /// Whether there is room for `reports` reports, wherever they go. If not, first wait for the other
    /// workers. What they must execute waits for nobody, so there is always progress.
    pub fn has_room_for(&mut self, reports: usize) -> bool {
        let mut senders = self.to_judge.iter_mut().chain(&mut self.to_execute).flatten();
        senders.all(|sender| sender.free_message_slots(reports) >= reports)
    }

    /// Number of reports handed over by others and waiting here.
    pub fn waiting_reports(&mut self) -> usize {
        self.execute.iter_mut().chain(&mut self.judge).map(HandoverReceiver::waiting_messages).sum()
    }

    /// The workers that were handed something since the last call: bit n for worker n.
    pub fn take_news(&mut self) -> u32 {
        std::mem::take(&mut self.news)
    }

    #[inline]
    pub(crate) fn judging_worker(&self, report: &DtaReport<'_>, source: Ipv4Addr) -> Option<usize> {
        let worker = steering::judging_worker(report, source, self.workers);
        (worker != self.own).then_some(worker)
    }

    #[inline]
    pub(crate) fn executor_of(&self, body: &DtaBody<'_>) -> Option<usize> {
        let worker = steering::executing_worker(body, self.workers);
        (worker != self.own).then_some(worker)
    }

    /// Hands over a report; there must be [room](Crew::has_room_for).
    #[inline]
    pub(crate) fn hand_over(&mut self, worker: usize, message: &HandoverMessage<'_>) {
        let senders = match message.stage {
            Stage::Judge => &mut self.to_judge,
            Stage::Execute | Stage::ExecuteUnnumbered => &mut self.to_execute,
        };
        if let Some(Some(sender)) = senders.get_mut(worker) {
            sender.put_message(message);
        }
    }

    /// Hands over a report without a reporter, to be executed; `false` if there is no room.
    pub(crate) fn try_hand_over(&mut self, worker: usize, report: &[u8]) -> bool {
        let nobody = PackedSocketAddr::new(Ipv4Addr::UNSPECIFIED, 0);
        let (source, destination, stage) = (nobody, nobody, Stage::ExecuteUnnumbered);
        let Some(Some(sender)) = self.to_execute.get_mut(worker) else { return false };
        let is_free = sender.free_message_slots(1) != 0;
        if is_free {
            sender.put_message(&HandoverMessage { stage, restarts: 0, source, destination, report });
        }
        is_free
    }

    pub(crate) fn publish_handovers(&mut self) {
        for (worker, senders) in self.to_judge.iter_mut().zip(&mut self.to_execute).enumerate() {
            for sender in [senders.0, senders.1].into_iter().flatten() {
                self.news |= u32::from(sender.publish_messages()) << worker;
            }
        }
    }

    /// Reporter restarts of all workers. `here` is this worker's number.
    #[inline]
    pub(crate) fn total_restarts(&mut self, here: u32) -> u32 {
        if here != self.restarts_here {
            let more = here.wrapping_sub(self.restarts_here);
            self.restarts_here = here;
            self.restarts.fetch_add(more, Ordering::Relaxed);
        }
        // Anything after a restart travels through a ring, which orders this store too.
        self.restarts.load(Ordering::Relaxed)
    }

    /// Passes what waits here to `take`, [a group](GROUP) of one ring at a time: first what to execute, then
    /// what to judge, as far as there is room for the results. Returns how many there were.
    pub(crate) fn take_handovers(&mut self, mut take: impl FnMut(&[MessageBuffer], &mut Crew)) -> usize {
        let mut taken = 0;
        for judges in [false, true] {
            for ring in 0..self.workers - 1 {
                let most = TURN.min(CAPACITY);
                if judges && !self.has_room_for(most) {
                    break;
                }
                let mut all = std::mem::take(if judges { &mut self.judge } else { &mut self.execute });
                if let Some(receiver) = all.get_mut(ring) {
                    let count = receiver.waiting_messages().min(most);
                    // The buffer is moved out of the crew while reports are handed over.
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
                        // The results are published before their places are freed.
                        self.publish_handovers();
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
