//! An agent and an endpoint that exchange datagrams at once, and algorithms that note what happens to them.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex};

use ccp::{Command, Config, Endpoint, FlowId, NewFlow, Sender, Sent};
use ccp_agent::{
    Agent, Algorithm, Datapath, Duration, Event, Failure, Flow, FlowInfo, Instant, Outcome, Report,
};
use ccp_wire::Create;

pub const AGENT: &[u8] = b"/run/agent";
pub const DATAPATH: &[u8] = b"/run/datapath";
pub const MSS: u32 = 1448;
pub const RTT: Duration = Duration::from_ms(20);
/// Reports bytes and losses; `size` can be set.
pub const COUNT: &str = "(def (Report (volatile acked 0) (volatile lost 0)) (size 7))
    (when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (report))";

pub struct Bench {
    pub endpoint: Endpoint,
    pub agent: Agent,
    pub now: Instant,
    /// The process of the agent; another number is another process.
    pub pid: u32,
}

pub fn endpoint() -> Endpoint {
    let mut endpoint = Endpoint::new(Config {
        datapath: 3,
        own_uid: 0,
        allowed_uids: Vec::new(),
        messages_per_second: 1_000_000,
        cwnd_max: 100_000_000,
        rate_max: u64::MAX,
        flows_max: 100_000,
    });
    endpoint.add_agent(Instant::from_ns(1), AGENT, &[]);
    endpoint
}

impl Bench {
    /// An agent with these algorithms, that the endpoint has met.
    pub fn new(agent: Agent) -> Self {
        let mut bench = Self { endpoint: endpoint(), agent, now: Instant::from_ns(1), pid: 1 };
        bench.pump();
        bench
    }

    pub fn with(algorithm: impl Algorithm + 'static) -> Self {
        let mut agent = Agent::new();
        agent.add(algorithm).expect("no mistakes");
        Self::new(agent)
    }

    /// Carries datagrams over and back until none is left.
    pub fn pump(&mut self) {
        for _ in 0..100 {
            let mut to_agent = VecDeque::new();
            self.endpoint.drive(self.now, &mut |_, bytes| {
                to_agent.push_back(bytes.to_vec());
                Sent::Taken
            });
            let is_quiet = to_agent.is_empty();
            to_agent.iter().for_each(|bytes| self.agent.receive(self.now, DATAPATH, bytes));
            self.agent.drive(self.now);
            let mut is_silent = true;
            while let Some(outgoing) = self.agent.poll_outgoing() {
                assert_eq!(outgoing.to, DATAPATH);
                is_silent = false;
                let sender = Sender { address: AGENT, pid: self.pid, uid: 0 };
                self.endpoint.receive(self.now, sender, &outgoing.bytes);
            }
            if is_quiet && is_silent {
                return;
            }
        }
        panic!("they never fall silent");
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now.plus(time);
        self.pump();
    }

    pub fn open(&mut self, id: u64, name: &str) {
        self.open_from(id, name, Ipv4Addr::LOCALHOST);
    }

    pub fn open_from(&mut self, id: u64, name: &str, source: Ipv4Addr) {
        let source = SocketAddrV4::new(source, id as u16);
        let destination = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);
        let create = Create::new(10 * MSS, MSS, source, destination).with_name(name).expect("short");
        let new = NewFlow { id: FlowId(id), uid: 0, rtt: RTT, rate_max: u64::MAX, create };
        self.endpoint.open(new).expect("there is room");
        self.pump();
    }

    pub fn close(&mut self, id: u64) {
        self.endpoint.close(FlowId(id));
        self.pump();
    }

    /// A report of program `number`, and what follows from it.
    pub fn report(&mut self, id: u64, number: u32, values: &[u64]) {
        self.endpoint.report(FlowId(id), number, RTT, values).expect("the flow runs a program");
        self.pump();
    }

    /// Commands for flows, without those that only say that a report has gone.
    pub fn commands(&mut self) -> Vec<Command> {
        let all = std::iter::from_fn(|| self.endpoint.poll_command());
        all.filter(|command| !matches!(command, Command::Accept { .. })).collect()
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.agent.poll_event()).collect()
    }
}

/// The window that a command sets, for a flow.
pub fn window(command: &Command) -> Option<(u64, u64)> {
    match command {
        Command::Program { flow, changes, .. } | Command::Change { flow, changes } => {
            changes.cwnd.map(|cwnd| (flow.0, cwnd))
        }
        _ => None,
    }
}

/// What happened to an algorithm's flows, in order.
#[derive(Clone, Default)]
pub struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    pub fn write(&self, line: String) {
        self.0.lock().expect("no test panics with it").push(line);
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no test panics with it"))
    }
}

/// An algorithm that gives its flows the program `count` and calls `handle` with each report.
pub struct Scripted {
    pub name: &'static str,
    pub diary: Diary,
    pub handle: fn(&Datapath, &Report) -> Outcome,
}

impl Scripted {
    pub fn new(name: &'static str, diary: &Diary, handle: fn(&Datapath, &Report) -> Outcome) -> Self {
        Self { name, diary: diary.clone(), handle }
    }
}

impl Algorithm for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    fn programs(&self) -> Vec<(String, String)> {
        [("count", COUNT), ("other", COUNT)].map(|(name, text)| (name.to_owned(), text.to_owned())).into()
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        self.diary.write(format!("{} new {} of {}", self.name, info.source.port(), info.mss));
        datapath.set_program("count", &[("Cwnd", info.cwnd * 2), ("size", 1 << 40)])?;
        Ok(Box::new(ScriptedFlow { diary: self.diary.clone(), datapath, handle: self.handle }))
    }
}

struct ScriptedFlow {
    diary: Diary,
    datapath: Datapath,
    handle: fn(&Datapath, &Report) -> Outcome,
}

impl Flow for ScriptedFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        let values: Vec<u64> = report.iter().map(|(_, value)| value).collect();
        self.diary.write(format!("report {values:?}"));
        (self.handle)(&self.datapath, report)
    }

    fn on_timer(&mut self) -> Outcome {
        self.diary.write(format!("timer at {} ms", self.datapath.now().as_ms()));
        Ok(())
    }

    fn close(&mut self) {
        self.diary.write("close".to_owned());
    }
}
