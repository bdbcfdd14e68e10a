//! A small agent: gives every flow one program, and answers each report with another window.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ccp_agent::{Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report, Runner, What};

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
    pub reports: u64,
}

/// A running agent; it ends when it is dropped.
pub struct Agent {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Seen>>,
}

impl Agent {
    pub fn start(path: &Path) -> Self {
        let runner = Runner::bind(path).expect("a path of the stage's own");
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        Self { is_over, thread: Some(std::thread::spawn(move || serve(runner, &told))) }
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

fn serve(mut runner: Runner, is_over: &AtomicBool) -> Seen {
    let mut agent = ccp_agent::Agent::new();
    agent.add(Windows).expect("no mistakes");
    let mut creates = 0;
    runner
        .run(&mut agent, &|| is_over.load(Ordering::Relaxed), &mut |event| {
            creates += u32::from(matches!(event.what, What::Opened { .. }));
        })
        .expect("the socket lives");
    let counters = agent.counters();
    assert_eq!((counters.malformed, counters.failures), (0, 0), "the datapath writes well: {counters:?}");
    Seen { creates, reports: counters.reports }
}

/// The algorithm: the bound of slow start changes with each report.
struct Windows;

struct WindowsFlow {
    datapath: Datapath,
    reports: usize,
}

impl Algorithm for Windows {
    fn name(&self) -> &str {
        "windows"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![("start".to_owned(), PROGRAM.to_owned())]
    }

    fn new_flow(&mut self, datapath: Datapath, _: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("start", &[])?;
        Ok(Box::new(WindowsFlow { datapath, reports: 0 }))
    }
}

impl Flow for WindowsFlow {
    fn on_report(&mut self, _: &Report) -> Outcome {
        self.reports += 1;
        self.datapath.update(&[("most", WINDOWS[self.reports % WINDOWS.len()])])?;
        Ok(())
    }
}
