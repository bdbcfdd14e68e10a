//! Reports: begun when their user has a place, made in pieces, written and sent by a helper, and emptied when their line is closed or asks anew.

use crate::daemon::Service;
use crate::daemon::control_lines::{Asked, Attention};
use crate::daemon::helpers::{self, Asker, SERVICE};
use crate::daemon::places::Text;
use crate::daemon::turns::Kind;
use crate::registry::Answer;
use crate::registry::registration::User;
use crate::registry::report::{Begun, Viewer, new_memfd};
use control::{LineError, Reply, Report};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a report is made before another line is served.
const PIECE: Duration = Duration::from_micros(500);
/// Entries of a report between two looks at the clock: each takes 1 us or less, or some where it asks the kernel.
const ENTRIES: usize = 64;

impl Service {
    /// A process asks for a report: it is begun as soon as its user has a place.
    pub(crate) fn ask_for_report(&mut self, Asker { id, number }: Asker, report: Report) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let user = peer.who.user();
        peer.report = Some((number, Asked::Waits(report)));
        self.attend(id, Attention::End);
        self.empty_text(id, user);
        self.places.ask(user, id);
        self.begin_reports();
    }

    /// Begins the reports that have a place now.
    pub(crate) fn begin_reports(&mut self) {
        while let Some(id) = self.places.begin() {
            self.begin_report(id);
        }
    }

    fn begin_report(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some((number, Asked::Waits(report))) = peer.report.take() else { return };
        let who = peer.who;
        match self.registry.begin_report(report, Viewer::of(who)) {
            Begun::Job(job) => {
                peer.report = Some((number, Asked::Made(job)));
                self.turns.add(who.user(), id, Kind::Piece);
            }
            Begun::Answer(answer) => {
                self.carry_out();
                if let Answer::Reply(Reply::Text, fds) = &answer
                    && let [memfd] = fds.as_slice()
                {
                    let bytes = rustix::fs::fstat(memfd).map_or(0, |stat| stat.st_size as u64);
                    self.places.keep(id, memfd.clone());
                    self.places.wrote(who.user(), id, bytes, self.registry.now());
                }
                self.answer(Asker { id, number }, answer);
                self.sent_report(id);
            }
        }
    }

    /// Makes one piece of the report that a line has asked for.
    pub(crate) fn go_on_with_report(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some((number, Asked::Made(job))) = &mut peer.report else { return };
        let (number, begin) = (*number, Instant::now());
        let is_complete = loop {
            let is_complete = job.go_on(&self.registry, ENTRIES);
            if is_complete || begin.elapsed() >= PIECE {
                break is_complete;
            }
        };
        let (user, line) = (peer.who.user(), peer.line.clone());
        if !is_complete {
            return self.turns.add(user, id, Kind::Piece);
        }
        if let Some((_, Asked::Made(job))) = peer.report.replace((number, Asked::Written)) {
            // As soon as the helper has it.
            peer.may_have_unread = true;
            let Ok(memfd) = new_memfd().map(Arc::new) else {
                self.answer(Asker { id, number }, Answer::out_of_descriptors());
                return self.sent_report(id);
            };
            self.places.keep(id, memfd.clone());
            let job = helpers::Job::Report(Asker { id, number }, line, Some(job), memfd);
            let _ = self.helpers.ask(user, job, self.registry.now());
        }
    }

    /// A helper has sent a report, or could not.
    pub(crate) fn reported(&mut self, id: u32, sent: Result<u64, LineError>, now: Instant) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        (peer.report, peer.unread, peer.may_have_unread) = (None, true, true);
        let bytes = sent.as_ref().map_or(0, |bytes| *bytes);
        self.places.wrote(peer.who.user(), id, bytes, now);
        self.places.sent(peer.who.user(), id, now);
        match sent {
            Ok(_) | Err(LineError::Closed) => self.sent_report(id),
            Err(e) => self.detach(id, &format!("its report cannot be sent: {e}")),
        }
    }

    /// A report was answered. Its line is read again when the answer has been.
    fn sent_report(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        self.places.sent(peer.who.user(), id, self.registry.now());
        self.attend(id, Attention::Reading);
    }

    /// The last report of a line has been read, or the line is closed: another of its user is begun.
    pub(crate) fn leave_place(&mut self, user: User, id: u32) {
        self.places.leave(user, id);
        self.begin_reports();
    }

    /// Has the last report of a line emptied.
    pub(crate) fn empty_text(&mut self, id: u32, user: User) {
        if let Some(Text { memfd, bytes }) = self.places.take_text(id) {
            let _ = self.helpers.ask(user, helpers::Job::Empty(memfd, user, bytes), self.registry.now());
        }
    }

    /// Closes lines with answers that were not read in time, so that other reports can be made, and has texts emptied that had their time.
    pub(crate) fn close_unread(&mut self, now: Instant) {
        for id in self.places.overdue(now) {
            self.detach(id, "it does not read a report, and others wait");
        }
        for id in self.places.stale(now) {
            let user = self.peers.get(&id).map_or(SERVICE, |peer| peer.who.user());
            self.empty_text(id, user);
        }
    }
}
