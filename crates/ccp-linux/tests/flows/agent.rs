//! A small agent: installs one program, and gives it to every flow.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ccp_lang::compile;
use ccp_vm::{Register, Scope};
use ccp_wire::{Fields, List, Message, Update, messages};

/// Slow start up to a megabyte, with a report every 10 ms.
const PROGRAM: &str = "
(def (Report (volatile acked 0) (rtt 0)) (most 1000000))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.rtt Flow.rtt_sample_us)
    (:= Cwnd (min most (+ Cwnd Ack.bytes_acked)))
    (fallthrough))
(when (> Micros 10000)
    (:= Micros 0)
    (report))
";
/// What the agent sets with each report: the third of these windows follows the second, and the first the third.
const WINDOWS: [u64; 3] = [1_000_000, 300_000, 600_000];

/// What the agent has heard.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    pub creates: u32,
    pub reports: u32,
}

/// A running agent; it ends when it is dropped.
pub struct Agent {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Seen>>,
}

impl Agent {
    pub fn start(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a path of the stage's own");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("settable");
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let path = path.to_owned();
        let thread = std::thread::spawn(move || {
            let seen = serve(&socket, &told);
            std::fs::remove_file(path).expect("the socket is there");
            seen
        });
        Self { is_over, thread: Some(thread) }
    }

    /// Ends the agent; what it has heard.
    pub fn stop(mut self) -> Seen {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().expect("ends once").join().expect("the agent lives")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(socket: &UnixDatagram, is_over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut bytes = [0; 1024];
    while !is_over.load(Ordering::Relaxed) {
        let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
        let Some(datapath) = from.as_pathname() else { continue };
        let say = |message: &[u8]| {
            // A datapath that is gone hears nothing.
            let _ = socket.send_to(message, datapath);
        };
        for message in messages(&bytes[..len]) {
            match message.expect("the datapath writes well") {
                Message::Ready { .. } => say(&install()),
                Message::Create { flow, .. } => {
                    seen.creates += 1;
                    say(&encoded(&Message::Change { flow, program: 1, fields: Fields::of(&[]) }));
                }
                Message::Measure { flow, values, .. } if values.len() == 2 => {
                    seen.reports += 1;
                    let value = WINDOWS[seen.reports as usize % WINDOWS.len()];
                    let most = Update { register: Register::new(Scope::Control, 0), value };
                    say(&encoded(&Message::Update { flow, fields: Fields::of(&[most]) }));
                }
                Message::Measure { .. } => {}
                other => panic!("no message to an agent: {other:?}"),
            }
        }
    }
    seen
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).expect("short");
    bytes
}

fn install() -> Vec<u8> {
    let compiled = compile(PROGRAM).unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
    let (events, instructions) = (List::of(compiled.events()), List::of(compiled.instructions()));
    encoded(&Message::Install { program: 1, events, instructions })
}
