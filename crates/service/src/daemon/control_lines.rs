//! The control lines (UNIX sockets of applications): accepts them, reads one message at a time, and hands messages with
//! descriptors to helper threads.

use crate::daemon::administrators::credentials;
use crate::daemon::closing::Closing;
use crate::daemon::helpers::{self, Done, Message};
use crate::daemon::pushes::{Owed, SEND_BUFFER};
use crate::daemon::turns::Kind;
use crate::daemon::{DEAF, LINES, LISTENING, Service};
use crate::registry::Answer;
use crate::registry::log_limit::log_for;
use crate::registry::process::descriptors::Charge;
use crate::registry::registration::{Credentials, User};
use crate::registry::report::job::Job;
use crate::registry::report::profile_switch::Part;
use crate::sys;
use control::{Line, LineError, Received, Report, Request, ToService};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long lines are accepted in one turn of the control loop; most lines accepted at the service's end.
const ACCEPTING: Duration = Duration::from_millis(1);
const LAST_ACCEPTS: usize = 64;
/// How long lines are served before the loop looks for other events.
const TURN: Duration = Duration::from_millis(1);
/// A message that is not read counts more bytes than this; less are the kernel's own, while it frees one.
pub const UNREAD_LEAST: u32 = 256;
/// Lines allowed beyond the most applications: for reports, and for processes about to say hello.
const SPARE_LINES: usize = 64;
/// Further lines kept for root and the service's own user, so that they can always ask and end the service.
const KEPT_LINES: usize = 16;
/// Why a line is closed when a helper could not read its messages.
const STICKS: &str = "a descriptor that its user has shown cannot be looked into or closed";

/// One control line and the process that made it.
#[derive(Debug)]
pub struct Peer {
    /// The accepted UNIX socket.
    pub line: Arc<Line>,
    /// The process at the other end (`SO_PEERCRED`).
    pub who: Credentials,
    /// It has asked for a report, or a child was promised on it: it is a command-line tool's or that child's, not an application's.
    pub asked: bool,
    /// The turn that it waits for, while it has not said hello: see `ends`.
    pub turn: Option<u64>,
    /// What the control loop hears of it.
    pub attention: Attention,
    /// A message that a helper has received, or that waits until the last answer is read.
    pub ready: Option<Result<Message, LineError>>,
    /// The report that it has asked for, with the number of the request.
    pub report: Option<(u32, Asked)>,
    /// An answer with descriptors was sent, and may not have been read yet. Until it is, no further request that has an answer is carried
    /// out: each line has at most one such answer under way.
    pub unread: bool,
    /// Messages with descriptors were sent since all had been read.
    pub may_have_unread: bool,
    /// What it has still to be told unasked.
    pub owed: Owed,
    /// The answer to its request of this number, until the helper has closed the descriptor that it has shown.
    pub withheld: Option<(u32, Answer)>,
    /// For the line, and what is in flight to it.
    pub charge: Charge,
}

/// What the control loop hears of a control line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attention {
    /// Messages, and its end.
    Messages,
    /// The same, and that it has room: something is owed to it.
    MessagesAndRoom,
    /// Nothing: a helper has it.
    Nothing,
    /// Its end alone: a report is being made for it.
    End,
    /// That the other end has read something, and its end: an answer lies unread.
    Reading,
}

impl Peer {
    fn new(line: Arc<Line>, who: Credentials, charge: Charge) -> Self {
        Self {
            line,
            who,
            asked: false,
            turn: None,
            attention: Attention::Messages,
            ready: None,
            report: None,
            unread: false,
            may_have_unread: false,
            owed: Owed::default(),
            withheld: None,
            charge,
        }
    }

    /// True when all answers have been read.
    fn has_read(&mut self) -> bool {
        self.unread = self.unread && sys::unread_bytes(self.line.as_fd()) >= UNREAD_LEAST;
        !self.unread
    }
}

impl Attention {
    fn flags(self) -> epoll::EventFlags {
        use epoll::EventFlags;
        match self {
            Self::Messages => EventFlags::IN | EventFlags::RDHUP,
            Self::MessagesAndRoom => EventFlags::IN | EventFlags::RDHUP | EventFlags::OUT,
            Self::Nothing => EventFlags::empty(),
            Self::End => EventFlags::ET,
            // Edge-triggered: the kernel reports each message that is read, while there is room for more.
            Self::Reading => EventFlags::OUT | EventFlags::ET,
        }
    }
}

/// How far the answer to a report has come.
#[derive(Debug)]
pub enum Asked {
    /// It waits for a place.
    Waits(Report),
    /// It is being made.
    Made(Job),
    /// A helper writes and sends it.
    Written,
}

impl Service {
    /// Accepts the lines that wait, as far as the time of a turn goes.
    pub(crate) fn accept(&mut self) {
        // Ends go on: they free descriptors.
        if self.deaf_until.is_some() {
            return self.ends.none_waits();
        }
        let begin = Instant::now();
        let mut at = begin;
        while at.saturating_duration_since(begin) < ACCEPTING {
            let Some(user) = self.accept_one(at) else { return self.ends.none_waits() };
            self.ends.line_accepted();
            let now = Instant::now();
            self.turns.spent_for_messages(user, now.saturating_duration_since(at));
            at = now;
        }
    }

    /// Accepts a line. `None`: none waits, or there is no descriptor for it.
    fn accept_one(&mut self, now: Instant) -> Option<User> {
        let (fd, mut who) = loop {
            match accept_with(&self.listening.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => {
                    let Ok(who) = credentials(fd.as_fd()) else { continue };
                    break (fd, who);
                }
                Err(Errno::AGAIN) => return None,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    tracing::error!("out of descriptors: new applications wait; raise the limit (ulimit -n)");
                    let _ = epoll::delete(&self.epoll, &self.listening.fd);
                    self.deaf_until = Some(now + DEAF);
                    return None;
                }
                Err(_) => {}
            }
        };
        let uid = who.uid;
        if let Err(why) = self.take_in(fd, &mut who, now) {
            let (limit, now) = self.registry.log_limit();
            log_for!(limit, now, uid, warn, "a control connection is closed: {why}");
        }
        Some(who.user())
    }

    /// Makes a new line one that is served, or closes it and says why.
    fn take_in(&mut self, fd: OwnedFd, who: &mut Credentials, now: Instant) -> Result<(), &'static str> {
        if !self.arrivals.comes(who.user(), now) {
            self.close_new(fd, *who);
            return Err("its user makes too many in too short a time");
        }
        // The kernel gives the accepted socket the network namespace of the connecting one.
        who.namespace = sys::namespace_cookie(fd.as_fd()).unwrap_or(0);
        self.make_room(*who);
        let kept = if who.is_administrator { KEPT_LINES } else { 0 };
        let most = self.registry.config().max_applications as usize + SPARE_LINES + kept;
        if self.peers.len() >= most {
            self.close_new(fd, *who);
            return Err("there are as many as there may be");
        }
        let Some(charge) = self.registry.charge_line(*who) else {
            self.close_new(fd, *who);
            return Err("its user has its share of the service's descriptors");
        };
        self.add_peer(fd, *who, charge);
        Ok(())
    }

    /// At the service's end.
    pub(crate) fn accept_last(&mut self) {
        (0..LAST_ACCEPTS).take_while(|_| self.accept_one(Instant::now()).is_some()).for_each(drop);
    }

    /// Closes a line that was just accepted. It may have brought descriptors.
    fn close_new(&mut self, fd: OwnedFd, who: Credentials) {
        let charge = self.registry.charge_closing(who);
        self.closing.push(Closing::new(fd, who.user(), charge));
    }

    /// Closes the oldest lines of a user that say no hello, so that with its new line it has as many as it may. A line that still has its turn
    /// may have said one.
    fn make_room(&mut self, who: Credentials) {
        let most = self.registry.unfinished_hellos_most(who);
        // One that stands for a child is no unfinished hello, however long the child is stopped: it counts as a process.
        let is_known = |id: u32| self.registry.is_registered(id) || self.registry.has_promise(id);
        let is_unfinished = |(id, peer): &(&u32, &Peer)| {
            peer.who.user() == who.user() && peer.turn.is_none() && !is_known(**id)
        };
        let mut unfinished: Vec<u32> = self.peers.iter().filter(is_unfinished).map(|(id, _)| *id).collect();
        let surplus = (unfinished.len() + 1).saturating_sub(most);
        if surplus == 0 {
            return;
        }
        // Ids rise until 2^32 lines were accepted, so the least ids are the oldest lines.
        unfinished.sort_unstable();
        for oldest in unfinished.into_iter().take(surplus) {
            let (limit, now) = self.registry.log_limit();
            log_for!(
                limit,
                now,
                who.uid,
                warn,
                "a user has {most} control connections that say no hello: one is closed"
            );
            self.hang_up(oldest);
        }
    }

    fn add_peer(&mut self, fd: OwnedFd, who: Credentials, charge: Charge) {
        // With the usual size more messages lie unread.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER);
        let id = self.next_peer;
        self.next_peer = self.next_peer.checked_add(1).unwrap_or(1);
        let line = Arc::new(Line::new(fd));
        let token = LINES | u64::from(id);
        if self.watch(line.as_fd(), token, Attention::Messages.flags()).is_ok() {
            self.peers.insert(id, Peer::new(line, who, charge));
            // Its hello is mostly there already.
            self.line_woken(id);
        } else {
            self.closing.push(Peer::new(line, who, charge).into());
        }
    }

    /// From now on this is heard of a line; with its messages that it has room, while something is owed to it.
    pub(crate) fn attend(&mut self, id: u32, attention: Attention) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let attention = match attention {
            Attention::Messages if !peer.owed.is_empty() => Attention::MessagesAndRoom,
            attention => attention,
        };
        if peer.attention == attention {
            return;
        }
        let data = epoll::EventData::new_u64(LINES | u64::from(id));
        let line = peer.line.as_fd();
        let done = match (peer.attention, attention) {
            (_, Attention::Nothing) => epoll::delete(&self.epoll, line),
            (Attention::Nothing, _) => epoll::add(&self.epoll, line, data, attention.flags()),
            _ => epoll::modify(&self.epoll, line, data, attention.flags()),
        };
        peer.attention = attention;
        if let Err(e) = done {
            self.detach(id, &format!("its control line cannot be watched: {e}"));
        }
    }

    pub(crate) fn listen_again(&mut self) {
        let flags = epoll::EventFlags::IN;
        let is_watched = self.watch(self.listening.fd.as_fd(), LISTENING, flags).is_ok();
        self.deaf_until = (!is_watched).then(|| Instant::now() + DEAF);
    }

    /// An event of a line: it takes its turn.
    pub(crate) fn line_woken(&mut self, id: u32) {
        let is_registered = self.registry.is_registered(id);
        if let Some(peer) = self.peers.get_mut(&id) {
            if !is_registered {
                peer.turn.get_or_insert_with(|| self.ends.wait());
            }
            self.turns.add(peer.who.user(), id, Kind::Message);
        }
    }

    /// Serves lines that have work, the users in turn, for a short time. Those that are left are served after other events were looked for.
    pub(crate) fn serve_lines(&mut self) {
        let begin = Instant::now();
        let mut at = begin;
        while let Some((user, id)) = self.next_turn() {
            self.registry.begin(Part::Requests);
            self.registry.set_now(at);
            self.serve_line(id);
            self.carry_out();
            let now = Instant::now();
            self.turns.spent(user, now.saturating_duration_since(at));
            at = now;
            if at.saturating_duration_since(begin) >= TURN {
                return;
            }
        }
    }

    /// The line that is served next, and its user. Ends that are due take their turns among the pieces.
    fn next_turn(&mut self) -> Option<(User, u32)> {
        while let Some(id) = self.ends.next() {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.ready = Some(Err(LineError::Closed));
                self.turns.add(peer.who.user(), id, Kind::Piece);
            }
        }
        self.turns.next()
    }

    /// Does the next piece of a line's work: a message, or a part of a report.
    fn serve_line(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some(turn) = peer.turn.take() {
            self.ends.had(turn);
        }
        let is_being_made = matches!(peer.report, Some((_, Asked::Made(_))));
        let attention = peer.attention;
        match attention {
            Attention::Nothing => self.serve_ready(id),
            Attention::End if is_being_made => self.go_on_with_report(id),
            Attention::End => self.hang_up(id),
            Attention::Reading if peer.has_read() => {
                let user = peer.who.user();
                self.leave_place(user, id);
                self.attend(id, Attention::Messages);
                self.serve_ready(id);
            }
            Attention::Reading => {}
            Attention::Messages => self.line_event(id),
            Attention::MessagesAndRoom => {
                self.say_owed(id);
                self.attend(id, Attention::Messages);
                self.line_event(id);
            }
        }
    }

    /// Takes a message that is there already.
    fn serve_ready(&mut self, id: u32) {
        if let Some(result) = self.peers.get_mut(&id).and_then(|peer| peer.ready.take()) {
            self.looked_into(id, result);
        }
    }

    /// Takes one message from one line. A program waits for the answer before it asks again, so there is seldom another; epoll reports it
    /// then.
    fn line_event(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let line = peer.line.clone();
        let received = match line.has_descriptors() {
            Ok(true) if peer.has_read() => return self.look_into(id, &line),
            Ok(true) => return self.attend(id, Attention::Reading),
            Ok(false) => line.receive_by(false, ToService::decode),
            Err(e) => Err(e),
        };
        let received = received.map(|Received { message: said, .. }| Message {
            said,
            shown: None,
            is_short: false,
            is_kept: false,
            had_any: false,
        });
        match received {
            Ok(message) if message.said.number != 0 && !peer.has_read() => {
                peer.ready = Some(Ok(message));
                self.attend(id, Attention::Reading);
            }
            Ok(message) => self.message(id, message),
            Err(LineError::WouldBlock) => {}
            Err(LineError::Closed) => self.end_later(id),
            Err(e) => self.detach(id, &e.to_string()),
        }
    }

    /// A line has ended, and all its messages are read: nothing more is heard of it until that is carried out.
    fn end_later(&mut self, id: u32) {
        self.attend(id, Attention::Nothing);
        self.ends.add(id);
    }

    /// Has a helper receive a message with descriptors. Nothing else is read from that line until the helper has answered.
    fn look_into(&mut self, id: u32, line: &Arc<Line>) {
        let Some(user) = self.peers.get(&id).map(|peer| peer.who.user()) else { return };
        if self.helpers.ask(user, helpers::Job::Receive(id, line.clone()), Instant::now()).is_ok() {
            self.attend(id, Attention::Nothing);
        } else {
            self.detach(id, STICKS);
        }
    }

    /// Handles the results of the helpers' jobs.
    pub(crate) fn hear_helpers(&mut self, now: Instant) {
        for done in self.helpers.finished(now) {
            match done {
                Done::Received(id, result) => match self.peers.get_mut(&id) {
                    Some(peer) => {
                        peer.ready = Some(result);
                        self.line_woken(id);
                    }
                    None => self.helpers.release(id, None, now),
                },
                Done::Reported(asker, sent) => self.reported(asker.id, sent, now),
                Done::Emptied(user, bytes) => {
                    self.places.emptied(user, bytes);
                    self.begin_reports();
                }
                Done::Sealed(region) => self.registry.note_sealed(region),
                Done::Policy(asker, rules) => {
                    let answer = self.registry.put_in_force(rules);
                    if let Some(asker) = asker {
                        self.answer(asker, answer);
                    }
                }
                Done::Released(id, watched) => self.released(id, watched),
                Done::Stuck(id, watch) => {
                    if let Some(watch) = watch {
                        let _ = self.registry.watched(watch, false, Answer::Silent);
                    }
                    self.detach(id, STICKS);
                }
            }
            self.carry_out();
        }
    }

    fn looked_into(&mut self, id: u32, result: Result<Message, LineError>) {
        if !result.as_ref().is_ok_and(|message| message.is_kept) {
            self.attend(id, Attention::Messages);
        }
        match result {
            // It came without descriptors.
            Ok(message @ Message { had_any: false, .. }) => self.message(id, message),
            Ok(Message { said, shown: None, is_short: false, .. }) => {
                let what = match said.request {
                    Request::Listen { .. }
                    | Request::Leave(_)
                    | Request::Present { .. }
                    | Request::Connect { .. } => "it showed something that is no TCP socket",
                    _ => "it sent descriptors that nobody asked for",
                };
                self.detach(id, what);
            }
            Ok(message) => self.message(id, message),
            Err(LineError::Closed) => self.hang_up(id),
            Err(e) => self.detach(id, &e.to_string()),
        }
    }
}
