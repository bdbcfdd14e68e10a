//! A process is killed between two instructions of the doorbell: it has published bytes, set the bit, or taken the mark of the sleeper, and
//! has not written the eventfd. The sleeper is woken all the same.

use crate::common::{App, Conn, Daemon, PATIENCE, listener};
use control::Parent;
use queue::{Doorbell, Wake};
use service::Options;
use shm::{Region, Side};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How far the killed process came.
#[derive(Clone, Copy, Debug)]
enum At {
    Published,
    BitSet,
    MarkTaken,
}

/// A server with one context, asleep on one connection.
struct Asleep {
    server: App,
    here: Conn,
}

impl Asleep {
    fn block(&self) -> (&Region, &shm::ContextBlock) {
        let region = self.server.region_of(self.here.region);
        (region, region.context(Side::One, self.server.context).unwrap())
    }

    /// The other end does as a producer does, as far as it comes.
    fn produce(&self, producer: &mut App, there: &mut Conn, at: At) {
        let (region, block) = self.block();
        let bell = Doorbell::of(region, Side::One, self.server.context).unwrap();
        assert!(bell.prepare_sleep(), "nothing has happened yet");
        producer.publish(there, b"last words");
        match at {
            At::Published => {}
            At::BitSet => {
                let (word, group) =
                    (there.slot as usize / 64, there.slot as usize / 64 / region.layout().words_per_group);
                block.words[word].fetch_or(1 << (there.slot % 64), Ordering::SeqCst);
                block.top.fetch_or(1 << group, Ordering::SeqCst);
            }
            At::MarkTaken => assert_eq!(bell.ring(there.slot), Wake::Needed),
        }
    }

    fn is_woken(&mut self, what: &str) {
        assert!(self.server.is_woken_within(PATIENCE), "{what}");
        assert_eq!(self.server.receive_exact(&mut self.here, 10), b"last words", "{what}");
    }
}

fn connected(server: &mut App, client: &mut App) -> (Conn, Conn) {
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let there = client.connect(address);
    let (here, _) = server.accept_wait(queue);
    // What came until now is taken off the list.
    while server.sleep(Duration::from_millis(20)) {}
    (here, there)
}

#[test]
fn the_peer_of_a_process_that_is_killed_is_woken() {
    for at in [At::Published, At::BitSet, At::MarkTaken] {
        let daemon = Daemon::start(Options::default());
        let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
        let (here, mut there) = connected(&mut server, &mut client);
        let mut asleep = Asleep { server, here };
        asleep.produce(&mut client, &mut there, at);
        drop(client);
        asleep.is_woken(&format!("{at:?}"));
    }
}

#[test]
fn the_peer_is_woken_though_a_relative_of_the_killed_process_keeps_the_connection() {
    for at in [At::Published, At::BitSet, At::MarkTaken] {
        let daemon = Daemon::start(Options::default());
        let (mut server, mut parent) = (App::new(&daemon), App::new(&daemon));
        let (here, mut there) = connected(&mut server, &mut parent);
        let block = parent.region.sock(1).unwrap();
        block.region.store(there.region, Ordering::Relaxed);
        block.slot.store(there.slot, Ordering::Relaxed);
        block.holders.store(0b11, Ordering::SeqCst);
        let (application, secret) = (parent.welcome.application, parent.welcome.secret);
        let child = App::with(&daemon, Some(Parent { application, secret, holder: 1 }), 1);
        let mut asleep = Asleep { server, here };
        // The child has its parent's mapping.
        asleep.produce(&mut parent, &mut there, at);
        drop(child);
        asleep.is_woken(&format!("{at:?}"));
        let flags = asleep.server.peer_flags(&asleep.here);
        assert_eq!(flags & (shm::half_flags::FIN | shm::half_flags::RESET), 0, "the parent lives");
    }
}
