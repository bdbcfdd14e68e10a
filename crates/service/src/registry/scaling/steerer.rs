//! The thread that gives the port its table of flow groups. A packet socket's new program is in force when all processors have left the old one,
//! which took up to 7 ms; the control thread must not wait for that. One table at a time: the slow path asks for the next one when it has
//! heard of the one before.

use crate::cores::wakers::write_eventfd;
use crate::threads;
use port::{Steering, Table};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The control thread's end.
#[derive(Debug)]
pub struct Steerer {
    orders: Sender<Table>,
    results: Receiver<io::Result<()>>,
}

impl Steerer {
    /// Starts the thread. It ends with this value, and writes `told` when it has a result.
    ///
    /// # Errors
    /// When the thread cannot be had.
    pub fn start(mut steering: Box<dyn Steering>, told: Arc<OwnedFd>) -> io::Result<Self> {
        let ((orders, ordered), (tell, results)) = (channel::<Table>(), channel());
        threads::start("towpath-steer", "the thread that steers the port", move || {
            while let Ok(table) = ordered.recv() {
                if tell.send(steering.apply(&table)).is_err() {
                    return;
                }
                write_eventfd(told.as_fd());
            }
        })?;
        Ok(Self { orders, results })
    }

    /// Has the port be given this table. False: the thread is gone, and the table stays what it was.
    pub fn order(&self, table: Table) -> bool {
        self.orders.send(table).is_ok()
    }

    /// The result of an order, if there is one now.
    pub fn result(&self) -> Option<io::Result<()>> {
        self.results.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::wakers::new_eventfd;
    use rustix::event::{PollFd, PollFlags, poll};

    /// A port that takes tables for queue 0 and refuses others, when it is allowed to.
    #[derive(Debug)]
    struct Slow(Receiver<()>);

    impl Steering for Slow {
        fn apply(&mut self, table: &Table) -> io::Result<()> {
            self.0.recv().map_err(io::Error::other)?;
            if table[0] == 0 { Ok(()) } else { Err(io::Error::other("another queue")) }
        }
        fn means(&self) -> &'static str {
            "a test"
        }
    }

    #[test]
    fn an_order_does_not_wait_and_its_result_wakes_the_control_thread() {
        let (allow, may) = channel();
        let told = new_eventfd().unwrap();
        let steerer = Steerer::start(Box::new(Slow(may)), told.clone()).unwrap();
        for queue in [0, 1] {
            assert!(steerer.order([queue; wire::GROUPS]));
            assert!(steerer.result().is_none(), "the port has not taken it");
            allow.send(()).unwrap();
            poll(&mut [PollFd::new(&told, PollFlags::IN)], None).unwrap();
            rustix::io::read(&told, &mut [0; 8]).unwrap();
            let result = steerer.result().expect("it was told of it");
            assert_eq!(result.is_ok(), queue == 0);
        }
    }
}
