//! The control lines (UNIX sockets of applications): accepts them, reads one message at a time, hands messages with descriptors to helper
//! threads, and closes lines.

use crate::daemon::administrators::is_administrator;
use crate::daemon::helpers::{Done, Job, Message};
use crate::daemon::{DEAF, LINES, LISTENING, Service};
use crate::registry::Answer;
use crate::registry::log_limit::log_for;
use crate::registry::registration::Credentials;
use crate::registry::report::profile_switch::Part;
use crate::{ServiceError, sys};
use control::{Line, LineError, Received, Request, ToService};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Most lines accepted in one turn of the control loop, and at the service's end.
pub(crate) const ACCEPTS: usize = TURN;
const LAST_ACCEPTS: usize = 64;
/// Most lines of one user that are served in one turn of the control loop. In a turn of this many messages the loop's other work costs
/// little, and another user's message waits for no more of each user.
const TURN: usize = 16;
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
    /// It has asked for a report: it is a command-line tool, not an application.
    pub asked: bool,
    /// The answer to its request of this number, until the helper has closed the descriptor that it has shown.
    pub withheld: Option<(u32, Answer)>,
}

/// The lines to serve in one turn, of these lines and their users: the first line of each user, then the second of each, and so on, at
/// most `TURN` lines of one user.
fn fair(lines: impl Iterator<Item = (u32, u32)>) -> Vec<u32> {
    let mut of_user: HashMap<u32, usize> = HashMap::new();
    let ranked = lines.map(|(line, uid)| {
        let before = of_user.entry(uid).or_default();
        *before += 1;
        (*before - 1, line)
    });
    let mut ranked: Vec<(usize, u32)> = ranked.filter(|(rank, _)| *rank < TURN).collect();
    // Stable: users and lines keep the kernel's order, in which a line served before comes last.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, line)| line).collect()
}

impl Service {
    /// Accepts new lines, at most `most`.
    pub(crate) fn accept(&mut self, most: usize) {
        for _ in 0..most {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = match accept_with(&self.listening.fd, flags) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    tracing::error!("out of descriptors: new applications wait; raise the limit (ulimit -n)");
                    let _ = epoll::delete(&self.epoll, &self.listening.fd);
                    self.deaf_until = Some(Instant::now() + DEAF);
                    return;
                }
                Err(_) => continue,
            };
            let Ok(who) = rustix::net::sockopt::socket_peercred(&fd) else { continue };
            // The kernel gives the accepted socket the network namespace of the connecting one.
            let namespace = sys::namespace_cookie(fd.as_fd()).unwrap_or(0);
            let (pid, uid, gid) = (who.pid.as_raw_pid(), who.uid.as_raw(), who.gid.as_raw());
            let is_administrator = is_administrator(fd.as_fd(), pid, uid);
            let who = Credentials { pid, uid, gid, namespace, is_administrator };
            self.make_room(who);
            let kept = if is_administrator { KEPT_LINES } else { 0 };
            let most = self.registry.config().max_applications as usize + SPARE_LINES + kept;
            if self.peers.len() >= most {
                let (limit, now) = self.registry.log_limit();
                log_for!(limit, now, uid, warn, "more control connections than {most}: one is closed");
                self.closing.push((Arc::new(Line::new(fd)), uid));
                continue;
            }
            self.add_peer(fd, who);
        }
    }

    /// Closes the oldest unregistered line of a user that has as many as it may, so that its new line can be served.
    fn make_room(&mut self, who: Credentials) {
        let most = self.registry.unfinished_hellos_most(who);
        let is_unfinished =
            |(id, peer): &(&u32, &Peer)| peer.who.uid == who.uid && !self.registry.is_registered(**id);
        let unfinished = || self.peers.iter().filter(is_unfinished).map(|(id, _)| *id);
        if unfinished().count() < most {
            return;
        }
        // Ids rise until 2^32 lines were accepted, so the least id is the oldest line.
        if let Some(oldest) = unfinished().min() {
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

    fn add_peer(&mut self, fd: OwnedFd, who: Credentials) {
        let id = self.next_peer;
        self.next_peer = self.next_peer.checked_add(1).unwrap_or(1);
        let line = Arc::new(Line::new(fd));
        if self.watch_line(id, &line).is_ok() {
            self.peers.insert(id, Peer { line, who, asked: false, withheld: None });
        } else {
            self.closing.push((line, who.uid));
        }
    }

    pub(crate) fn watch_line(&self, id: u32, line: &Line) -> Result<(), ServiceError> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        self.watch(line.as_fd(), LINES | u64::from(id), flags)
    }

    pub(crate) fn listen_again(&mut self) {
        let flags = epoll::EventFlags::IN;
        let is_watched = self.watch(self.listening.fd.as_fd(), LISTENING, flags).is_ok();
        self.deaf_until = (!is_watched).then(|| Instant::now() + DEAF);
    }

    /// Takes one message from each of these readable lines, from at most `TURN` lines of one user. Epoll reports the others again.
    pub(crate) fn serve_lines(&mut self, readable: impl Iterator<Item = u32>) {
        let with_users = readable.filter_map(|id| Some((id, self.peers.get(&id)?.who.uid)));
        for id in fair(with_users) {
            self.registry.begin(Part::Requests);
            self.line_event(id);
            self.carry_out();
        }
    }

    /// Takes one message from one line. A program waits for the answer before it asks again, so there is seldom another; epoll reports it
    /// then.
    fn line_event(&mut self, id: u32) {
        let Some(peer) = self.peers.get(&id) else { return };
        let line = peer.line.clone();
        let received = match line.has_descriptors() {
            Ok(true) => return self.look_into(id, &line),
            Ok(false) => line.receive::<ToService>(false),
            Err(e) => Err(e),
        };
        match received {
            Ok(Received { message, .. }) => {
                self.message(id, Message { said: message, shown: None, is_short: false, is_kept: false });
            }
            Err(LineError::WouldBlock) => {}
            Err(LineError::Closed) => self.hang_up(id),
            Err(e) => self.detach(id, &e.to_string()),
        }
    }

    /// Has a helper receive a message with descriptors. Nothing else is read from that line until the helper has answered.
    fn look_into(&mut self, id: u32, line: &Arc<Line>) {
        let Some(uid) = self.peers.get(&id).map(|peer| peer.who.uid) else { return };
        if self.helpers.ask(uid, Job::Receive(id, line.clone()), Instant::now()).is_ok() {
            let _ = epoll::delete(&self.epoll, line.as_fd());
        } else {
            self.detach(id, STICKS);
        }
    }

    /// Handles the results of the helpers' jobs.
    pub(crate) fn hear_helpers(&mut self, now: Instant) {
        for done in self.helpers.finished(now) {
            match done {
                Done::Received(id, result) => self.looked_into(id, result),
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
        // The process may have been detached meanwhile.
        let Some(line) = self.peers.get(&id).map(|peer| peer.line.clone()) else { return };
        let is_kept = result.as_ref().is_ok_and(|message| message.is_kept);
        if !is_kept && let Err(e) = self.watch_line(id, &line) {
            return self.detach(id, &e.to_string());
        }
        match result {
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

    /// Closes control lines. A line that still holds unread descriptors is closed by a helper, together with them.
    pub(crate) fn close_lines(&mut self, now: Instant) {
        for (line, uid) in std::mem::take(&mut self.closing) {
            let line = match Arc::try_unwrap(line) {
                Ok(line) => line,
                // A helper still uses the line.
                Err(line) => {
                    self.closing.push((line, uid));
                    continue;
                }
            };
            // From here on no new message can arrive.
            let _ = rustix::net::shutdown(&line, rustix::net::Shutdown::Both);
            let has_descriptors = loop {
                match line.has_descriptors() {
                    Ok(true) => break true,
                    Ok(false) => drop(line.receive::<ToService>(false)),
                    Err(_) => break false,
                }
            };
            if has_descriptors {
                let _ = self.helpers.ask(uid, Job::Close(line.into()), now);
            }
        }
    }

    /// At the service's end: closes all control lines, those not yet accepted too.
    pub(crate) fn hang_up_all(&mut self) {
        self.accept(LAST_ACCEPTS);
        let ids: Vec<u32> = self.peers.keys().copied().collect();
        for id in ids {
            self.registry.forget(id);
            self.closing.extend(self.peers.remove(&id).map(|peer| (peer.line, peer.who.uid)));
        }
        self.close_lines(Instant::now());
        // A helper still uses these lines: the kernel closes them when the process ends.
        std::mem::take(&mut self.closing).into_iter().for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_is_served_once_before_any_is_served_again() {
        let lines = [(1, 7), (2, 7), (3, 7), (4, 8), (5, 9), (6, 8)];
        assert_eq!(fair(lines.into_iter()), [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn a_user_with_many_lines_does_not_fill_the_turn() {
        let many = (0..200).map(|line| (line, 7)).chain([(200, 8)]);
        let served = fair(many);
        assert_eq!((served.len(), served[1]), (TURN + 1, 200));
    }
}
