//! A service in a thread of the test, for the tests of several crates.

use service::{Config, Service};
use std::thread::JoinHandle;

/// A service in a thread, which is open. It is opened there, too: that thread and what it starts give up what the service does not need,
/// and not the test's own thread.
pub fn serve(config: Config) -> JoinHandle<()> {
    let (opened, is_open) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let service = Service::open(config).unwrap();
        opened.send(()).unwrap();
        service.run().unwrap();
    });
    is_open.recv().expect("the service opens");
    thread
}
