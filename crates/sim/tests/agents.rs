//! Agents of crate `ccp-agent` over simulated hosts: their handlers run in virtual time, and a mistake of one flow is that flow's alone.

use base::{Duration, Instant};
use ccp_agent::{Agent, Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report, What};
use congestion::Algorithm as BuiltIn;
use link::{LinkConfig, Outage};
use sim::load::{Connections, Job, Load};
use sim::topology::{Fabric, HostSetting, PORT};
use sim::{AgentMaker, AgentSetting, Mind};
use std::sync::{Arc, Mutex};

const BEGIN: Instant = Instant::from_ns(1_000_000_000);
const STALENESS: Duration = Duration::from_ms(4);

/// When each handler was called (the datapath's time of the last acknowledgement, the agent's time), microseconds.
type Calls = Arc<Mutex<Vec<(u64, u64)>>>;

/// A window that counts up with each report, once a round trip, and tells of each.
struct Counts {
    calls: Calls,
    /// The first flow has begun: its second report is a mistake.
    has_failed: bool,
    program: &'static str,
}

/// Tells once a round trip.
const EACH_ROUND_TRIP: &str = "(def (Report (now 0)))
    (when true (:= Report.now Ack.now) (fallthrough))
    (when (> Micros Flow.rtt_sample_us) (report) (reset))";
/// Tells at each run, but for those of a batch of acknowledgements.
const EACH_MILLISECOND: &str = "(def (Report (now 0)))
    (when true (:= Report.now Ack.now) (fallthrough))
    (when (> Micros 1000) (report) (reset))";

struct CountsFlow {
    datapath: Datapath,
    calls: Calls,
    cwnd: u64,
    reports: u64,
    is_bad: bool,
}

impl Algorithm for Counts {
    fn name(&self) -> &str {
        "counts"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![("tells".to_owned(), self.program.to_owned())]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("tells", &[("Cwnd", 20 * info.mss)])?;
        let is_bad = !std::mem::replace(&mut self.has_failed, true);
        let calls = Arc::clone(&self.calls);
        Ok(Box::new(CountsFlow { datapath, calls, cwnd: 20 * info.mss, reports: 0, is_bad }))
    }
}

impl Flow for CountsFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        self.calls.lock().unwrap().push((report.get("now")?, self.datapath.now().as_us()));
        self.reports += 1;
        if self.is_bad && self.reports == 2 {
            panic!("the second report");
        }
        self.cwnd += 1;
        self.datapath.update(&[("Cwnd", self.cwnd)])?;
        Ok(())
    }
}

/// Three flows over 10 Mbit/s and a round trip of 20 ms, for two seconds. Their windows at the end, and the calls of their handlers.
fn run() -> (Vec<u32>, Vec<(u64, u64)>, Vec<ccp_agent::Event>) {
    run_over(&LinkConfig::rated(10_000_000, Duration::from_ms(5)), EACH_ROUND_TRIP)
}

fn run_over(link: &LinkConfig, program: &'static str) -> (Vec<u32>, Vec<(u64, u64)>, Vec<ccp_agent::Event>) {
    let calls = Calls::default();
    let mut fabric = flows_of(setting(&calls, false, program), link);
    let from = fabric.members[1].node;
    let network = &mut fabric.network;
    network.run_until(BEGIN.plus(Duration::from_secs(2)));
    let windows = (0..3).map(|number| network.sight(from, number).unwrap().cwnd).collect();
    let events = events_of(&mut fabric);
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    (windows, calls, events)
}

/// An agent of `Counts`. `has_failed`: no flow makes a mistake.
fn setting(calls: &Calls, has_failed: bool, program: &'static str) -> AgentSetting {
    let log = Arc::clone(calls);
    let maker = AgentMaker::new(move || {
        let mut agent = Agent::new();
        agent.add(Counts { calls: Arc::clone(&log), has_failed, program }).unwrap();
        agent
    });
    AgentSetting::new(STALENESS, Mind::Agent(maker))
}

/// Three flows without an end from the second host, which has the agent, to the first one.
fn flows_of(setting: AgentSetting, link: &LinkConfig) -> Fabric {
    let receiver = HostSetting::new(BuiltIn::Cubic);
    let sender = HostSetting { agent: Some(setting), ..receiver.clone() };
    let mut fabric = Fabric::star(&[receiver, sender], link, 1, BEGIN);
    let (to, from) = (fabric.members[0], fabric.members[1]);
    let network = &mut fabric.network;
    network.load(to.node, Load::new(Connections::Fresh).serving(PORT, 16));
    let mut jobs: Vec<Job> = (0..3).map(|_| Job::new(BEGIN, to.socket(), u64::MAX)).collect();
    network.tally.enter(&mut jobs);
    network.load(from.node, Load::new(Connections::Fresh).sending(jobs));
    fabric
}

/// What the agent has logged since it was asked last.
fn events_of(fabric: &mut Fabric) -> Vec<ccp_agent::Event> {
    let from = fabric.members[1].node;
    let agent = fabric.network.machine(from).unwrap().host().unwrap().agent().unwrap();
    std::iter::from_fn(|| agent.poll_event()).collect()
}

#[test]
fn reports_reach_handlers_after_half_of_the_staleness_and_answers_are_in_force() {
    let (windows, calls, _) = run();
    assert!(calls.len() > 30, "{} reports", calls.len());
    for (told, heard) in &calls {
        // The datapath counts microseconds from its own beginning, which is that of the run.
        let late = heard - told;
        assert!((2000..2100).contains(&(late % 1_000_000)), "told at {told}, heard at {heard} us");
    }
    for window in &windows[1..] {
        assert!((20 * 1448..20 * 1448 + 200).contains(window) && *window > 20 * 1448, "{windows:?}");
    }
}

#[test]
fn a_handler_that_panics_costs_its_own_flow() {
    let (_, _, events) = run();
    let failed: Vec<_> = events.iter().filter(|e| matches!(e.what, What::Failed { .. })).collect();
    let [only] = failed[..] else { panic!("{failed:?}") };
    assert!(only.to_string().contains("the second report"), "{only}");
    let reported =
        |event: &&ccp_agent::Event| matches!(&event.what, What::Program { name } if name == "fallback");
    assert_eq!(events.iter().filter(reported).map(|event| event.flow).collect::<Vec<_>>(), [only.flow]);
}

#[test]
fn the_same_seed_gives_the_same_calls() {
    assert_eq!(run(), run());
}

#[test]
fn while_nothing_comes_a_flow_is_told_of_ever_more_rarely() {
    let from = BEGIN.plus(Duration::from_ms(1_000));
    let mut link = LinkConfig::rated(100_000_000, Duration::from_ms(5));
    link.outages.push(Outage { from, to: from.plus(Duration::from_secs(10)) });
    let (_, calls, _) = run_over(&link, EACH_MILLISECOND);
    // What was on its way has come after 0.1 s, and the run ends after 2.
    let silent = calls.iter().filter(|(told, _)| *told > 2_100_000).count();
    // Some 30 for each of the three flows, if each tick came a round trip after the one before. A retransmission timeout begins the row anew.
    assert!((10..=50).contains(&silent), "{silent} reports");
}

/// From half a second on a handler sleeps for a second, which is fifty round trips and more: three flows over 10 Mbit/s go on all the time.
/// Their windows while the agent sleeps and after it, and what the agent has logged since it woke.
fn run_with_a_sleep(program: &'static str) -> ([Vec<u32>; 2], Vec<ccp_agent::Event>) {
    let times = [500, 1_500].map(|ms| BEGIN.plus(Duration::from_ms(ms)));
    let calls = Calls::default();
    let setting = AgentSetting { sleep: Some((times[0], times[1])), ..setting(&calls, true, program) };
    let mut link = LinkConfig::rated(10_000_000, Duration::from_ms(5));
    link.queue_packets = Some(50);
    let mut fabric = flows_of(setting, &link);
    let from = fabric.members[1].node;
    let windows = |fabric: &mut Fabric| -> Vec<u32> {
        (0..3).map(|number| fabric.network.sight(from, number).unwrap().cwnd).collect()
    };
    fabric.network.run_until(times[0]);
    events_of(&mut fabric);
    calls.lock().unwrap().clear();
    let received = |fabric: &Fabric| fabric.network.tally.messages().iter().map(|m| m.received).sum::<u64>();
    let mut before = received(&fabric);
    for tenth in 1..=10 {
        fabric.network.run_until(times[0].plus(Duration::from_ms(tenth * 100 - 1)));
        let now = received(&fabric);
        assert!(now - before > 60_000, "{} bytes in tenth {tenth}", now - before);
        before = now;
    }
    assert!(calls.lock().unwrap().is_empty(), "no handler runs while one sleeps");
    let asleep = windows(&mut fabric);
    fabric.network.run_until(times[1].plus(Duration::from_ms(500)));
    assert!(calls.lock().unwrap().iter().any(|(told, _)| *told > 1_600_000), "reports come again");
    ([asleep, windows(&mut fabric)], events_of(&mut fabric))
}

/// The window that `Counts` gives its flows.
fn is_counted(window: &u32) -> bool {
    (20 * 1448..20 * 1448 + 1_000).contains(window)
}

fn count(events: &[ccp_agent::Event], is_so: fn(&What) -> bool) -> usize {
    events.iter().filter(|event| is_so(&event.what)).count()
}

/// Reports each round trip: the agent's socket is full after some of them, and the flows go on with Cubic. When the handler wakes, its agent
/// hears of their ends, and gets all of them anew.
#[test]
fn a_handler_that_sleeps_loses_its_flows_when_its_socket_is_full_and_gets_them_when_it_wakes() {
    let ([asleep, awake], events) = run_with_a_sleep(EACH_ROUND_TRIP);
    assert!(!asleep.iter().any(is_counted), "{asleep:?}");
    assert!(awake.iter().all(is_counted), "{awake:?}");
    let (ends, begins) = (
        count(&events, |what| matches!(what, What::Closed { .. })),
        count(&events, |what| matches!(what, What::Opened { .. })),
    );
    assert_eq!((ends, begins), (3, 3), "{events:?}");
}

/// Reports each 600 ms: two of each flow find room while the handler sleeps. No answer is due to a report, so nothing tells this agent from one that
/// has nothing to say: its flows keep program and window.
#[test]
fn a_handler_that_sleeps_keeps_its_flows_while_its_socket_has_room() {
    const SELDOM: &str = "(def (Report (now 0)))
        (when true (:= Report.now Ack.now) (fallthrough))
        (when (> Micros 600000) (report) (reset))";
    let ([asleep, awake], events) = run_with_a_sleep(SELDOM);
    assert!(asleep.iter().chain(&awake).all(is_counted), "{asleep:?} {awake:?}");
    assert_eq!(count(&events, |what| matches!(what, What::Closed { .. } | What::Opened { .. })), 0);
}

/// The agent has given a window of 16 MB, of which what the receiver takes is in flight. Its socket is full at the latest after ten reports, and
/// the flow begins anew with what is in flight, at the end of its three round trips.
#[test]
fn a_flow_falls_back_with_a_window_no_larger_than_what_is_in_flight() {
    const WINDOW: u32 = 16 << 20;
    let asleep = BEGIN.plus(Duration::from_ms(500));
    let maker = AgentMaker::new(|| {
        let mut agent = Agent::new();
        agent.add(Wide(u64::from(WINDOW))).unwrap();
        agent
    });
    let setting = AgentSetting::new(STALENESS, Mind::Agent(maker));
    let setting = AgentSetting { sleep: Some((asleep, Instant::NEVER)), ..setting };
    let mut fabric = flows_of(setting, &LinkConfig::rated(10_000_000, Duration::from_ms(5)));
    let (from, step) = (fabric.members[1].node, Duration::from_us(100));
    let (mut at, mut fallen) = (asleep, [false; 3]);
    fabric.network.run_until(at);
    let mut before = [0, 1, 2].map(|number| fabric.network.sight(from, number).unwrap());
    assert!(before.iter().all(|flow| flow.cwnd == WINDOW && flow.in_flight > 0), "{before:?}");
    while fallen != [true; 3] {
        at = at.plus(step);
        assert!(at < asleep.plus(Duration::from_secs(20)), "{fallen:?}");
        fabric.network.run_until(at);
        let now = [0, 1, 2].map(|number| fabric.network.sight(from, number).unwrap());
        for i in 0..3 {
            if before[i].cwnd == WINDOW && now[i].cwnd != WINDOW {
                fallen[i] = true;
                // What is acknowledged within a step may be added.
                let most = before[i].in_flight.max(now[i].in_flight) + 2 * 1448;
                assert!(now[i].cwnd <= most && most < WINDOW / 2, "{:?}, then {:?}", before[i], now[i]);
            }
        }
        before = now;
    }
}

/// The same window for good, and a report each round trip.
struct Wide(u64);

struct WideFlow;

impl Algorithm for Wide {
    fn name(&self) -> &str {
        "wide"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![("tells".to_owned(), EACH_ROUND_TRIP.to_owned())]
    }

    fn new_flow(&mut self, datapath: Datapath, _info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("tells", &[("Cwnd", self.0)])?;
        Ok(Box::new(WideFlow))
    }
}

impl Flow for WideFlow {
    fn on_report(&mut self, _report: &Report) -> Outcome {
        Ok(())
    }
}

/// Window and rate from one extreme to the other at each report.
struct Flips;

struct FlipsFlow {
    datapath: Datapath,
    reports: usize,
}

impl Algorithm for Flips {
    fn name(&self) -> &str {
        "flips"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![("tells".to_owned(), EACH_ROUND_TRIP.to_owned())]
    }

    fn new_flow(&mut self, datapath: Datapath, _info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("tells", &[])?;
        Ok(Box::new(FlipsFlow { datapath, reports: 0 }))
    }
}

impl Flow for FlipsFlow {
    fn on_report(&mut self, _report: &Report) -> Outcome {
        const EXTREMES: [u64; 3] = [0, 1, u64::MAX];
        let (window, rate) = (EXTREMES[self.reports % 3], EXTREMES[self.reports / 3 % 3]);
        self.reports += 1;
        self.datapath.update(&[("Cwnd", window), ("Rate", rate)])?;
        Ok(())
    }
}

#[test]
fn extremes_at_every_report_stop_no_flow() {
    let maker = AgentMaker::new(|| {
        let mut agent = Agent::new();
        agent.add(Flips).unwrap();
        agent
    });
    let mut link = LinkConfig::rated(10_000_000, Duration::from_ms(5));
    link.queue_packets = Some(50);
    let mut fabric = flows_of(AgentSetting::new(STALENESS, Mind::Agent(maker)), &link);
    let mut before = vec![0; 3];
    for seconds in 1..=6 {
        fabric.network.run_until(BEGIN.plus(Duration::from_secs(10 * seconds)));
        let now: Vec<u64> = fabric.network.tally.messages().iter().map(|m| m.received).collect();
        assert!(now.iter().zip(&before).all(|(now, before)| now > before), "{before:?} and then {now:?}");
        before = now;
    }
    let failed = events_of(&mut fabric).into_iter().filter(|e| matches!(e.what, What::Failed { .. }));
    assert_eq!(failed.count(), 0);
}
