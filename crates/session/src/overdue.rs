//! What happens with an answer of the service that comes too late: the call that asked has ended otherwise, so what the answer brings is
//! given back.

use crate::Client;
use control::{Reply, Request, Unlisten};
use endpoint::region::Mapped;
use queue::stream::raise;
use rustix::fd::OwnedFd;
use shm::half_flags::{READ_CLOSED, RELEASED, RESET};

impl Client {
    /// Gives back what an answer brings that came too late: the call that asked has ended otherwise.
    #[cold]
    pub(crate) fn decline(&self, reply: Reply, mut fds: Vec<OwnedFd>) {
        match reply {
            Reply::Connecting { region, slot, lent, .. } => {
                if let Some(lent) = lent.filter(|lent| lent.is_new) {
                    self.adopt_queue(lent.queue, &mut fds);
                }
                if let Some(region) = self.adopt(region, fds.into_iter().next()) {
                    self.say(Request::Mapped { region });
                }
                self.known(region.id, region.side).iter().for_each(|mapped| self.let_go(mapped, slot));
            }
            Reply::Moved { slot, .. } => self.let_go(&self.home, slot),
            Reply::Listening { queue, .. } => {
                self.say(Request::Unlisten { queue, because: Unlisten::GivenUp });
            }
            _ => {}
        }
    }

    /// Resets a connection in which no socket of this process has a part.
    fn let_go(&self, mapped: &Mapped, slot: u32) {
        if !mapped.has(slot) {
            return;
        }
        raise(mapped.halves(slot).0, RESET | READ_CLOSED | RELEASED);
        if let Some(context) = mapped.tell(slot) {
            self.wake_other(mapped, context);
        }
        if !mapped.pair {
            self.say(Request::Closed { region: mapped.id, slot });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HOST;
    use crate::rpc::Exchange;
    use crate::{Announced, lock};
    use control::{Line, Push, Received, RegionInfo, Settings, ToApplication, ToService, Welcome};
    use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
    use rustix::io::Errno;
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use shm::{Kind, Params, Region, Side};
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    const APPLICATION: Params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 1 << 20 };
    const PAIR: Params = Params { kind: Kind::Pair, id: 2, ..APPLICATION };
    const SLOT: u32 = 3;

    /// A registration with a service that says only what the test says.
    fn client() -> (Arc<Client>, Line) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        // What the service has not said by the time that a test asks for it comes after any limit.
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&ours, direction, Some(Duration::from_millis(1))).unwrap();
        }
        let control = ours.as_raw_fd();
        let said = Announced::of(Exchange::new(Line::new(ours), 0), control);
        let home =
            Arc::new(Mapped::new(&HOST, Side::One, Arc::new(Region::create(APPLICATION).unwrap().0), 0));
        let settings = Settings { own: Vec::new(), has_port: false, ring_max: 1 << 16, spin_ns: 0, cores: 1 };
        let welcome = Welcome { application: 7, secret: 0, holder: 0, settings };
        let regions = HashMap::from([((1, 1), home.clone())]);
        let client = Client::assemble(said, welcome, home.clone(), home, regions, HashMap::new());
        (Arc::new(client), Line::new(theirs))
    }

    fn connect() -> Request {
        let remote = "127.0.0.1:80".parse().unwrap();
        Request::Connect { remote, options: control::SocketOptions::default(), has_looked: false }
    }

    fn heard(line: &Line) -> ToService {
        line.receive::<ToService>(false).unwrap().message
    }

    fn answer(line: &Line, number: u32, reply: Reply, fds: &[BorrowedFd<'_>]) {
        line.send(&ToApplication::Reply(number, reply), fds, true).unwrap();
    }

    fn connecting() -> Reply {
        let local = "127.0.0.1:9".parse().unwrap();
        let region = RegionInfo::of(&PAIR, Side::Zero, true);
        Reply::Connecting { region, slot: SLOT, local, lent: None }
    }

    #[test]
    fn a_silent_service_ends_no_connection_and_is_asked_one_question_at_a_time() {
        let (client, service) = client();
        assert_eq!(client.ask(connect()).unwrap_err(), Errno::TIMEDOUT);
        assert!(!client.dead.load(Ordering::Relaxed) && client.is_silent());
        assert!(!client.home.dead.load(Ordering::Relaxed), "established connections go on");
        assert_eq!(client.ask(connect()).unwrap_err(), Errno::TIMEDOUT);
        assert_eq!(heard(&service).number, 1);
        assert!(service.receive::<ToService>(false).is_err(), "the second question was not sent");
        // The late answer is not taken for that to the next question.
        answer(&service, 1, Reply::Kernel { reason: control::KernelReason::IoUring }, &[]);
        answer(&service, 2, Reply::Done, &[]);
        assert_eq!(client.ask(Request::Room { room: 1 }).unwrap().0, Reply::Done);
        assert!(!client.is_silent() && heard(&service).number == 2);
    }

    #[test]
    fn a_connection_that_comes_too_late_is_reset() {
        let (client, service) = client();
        assert!(client.ask(connect()).is_err());
        let (pair, memfd) = Region::create(PAIR).unwrap();
        answer(&service, 1, connecting(), &[memfd.as_fd()]);
        assert!(!client.pump());
        let flags = pair.slot(SLOT).unwrap().half[0].flags.load(Ordering::SeqCst);
        assert_eq!(flags, RESET | READ_CLOSED | RELEASED);
        assert_eq!(heard(&service).number, 1);
        assert_eq!(heard(&service).request, Request::Mapped { region: PAIR.id as u32 });
    }

    #[test]
    fn a_listener_that_comes_too_late_is_given_up() {
        let (client, service) = client();
        assert!(client.ask(Request::Listen { backlog: 1, nonblocking: false }).is_err());
        answer(&service, 1, Reply::Listening { queue: 5, is_known: false }, &[]);
        assert!(!client.pump());
        heard(&service);
        assert_eq!(heard(&service).request, Request::Unlisten { queue: 5, because: Unlisten::GivenUp });
    }

    #[test]
    fn what_a_service_that_does_not_read_must_hear_it_hears_in_order_when_it_reads_again() {
        let (client, service) = client();
        let closed = |slot| Request::Closed { region: 1, slot };
        let mut said = 0;
        while !client.is_silent() {
            client.say(closed(said));
            said += 1;
        }
        client.say(closed(said));
        assert_eq!(
            client.ask(connect()).unwrap_err(),
            Errno::TIMEDOUT,
            "it is not asked before it has heard the rest"
        );
        let mut slots = Vec::new();
        loop {
            while let Ok(Received { message: ToService { request, .. }, .. }) = service.receive(false) {
                match request {
                    Request::Closed { slot, .. } => slots.push(slot),
                    Request::Connect { .. } => {
                        assert_eq!(slots, (0..=said).collect::<Vec<_>>());
                        return;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(client.ask(connect()).is_err());
        }
    }

    #[test]
    fn the_end_of_the_line_is_the_end_of_the_service() {
        let (client, service) = client();
        assert!(client.ask(connect()).is_err());
        drop(service);
        assert!(client.pump() && client.dead.load(Ordering::Relaxed));
        assert!(client.home.dead.load(Ordering::Relaxed));
    }

    #[test]
    fn pushes_are_heard_of_a_service_that_owes_an_answer() {
        let (client, service) = client();
        assert!(client.ask(connect()).is_err());
        service.send(&ToApplication::Push(Push::Revoked { region: 1 }), &[], true).unwrap();
        assert_eq!(client.ask(connect()).unwrap_err(), Errno::TIMEDOUT);
        assert!(client.home.dead.load(Ordering::Relaxed), "that region was revoked");
        assert!(lock(&client.exchange).is_silent());
    }
}
