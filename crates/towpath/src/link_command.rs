//! `towpath link`: an emulated link between two interfaces, until a signal or the end of its time.

use anyhow::Context;
use base::{Duration, Instant};
use clap::Args;
use emulator::{Emulator, Place, Report};
use link::LinkConfig;

pub const HELP: &str = "An end is tap:NAME (an interface made now, gone at the end) or packet:NAME (one that exists, like \
one end of a veth, and that has no addresses), with @NETNS (a name as in `ip netns`, or /proc/PID/ns/net) when it is in another \
network namespace.\n\n\
A SPEC is key=value, with commas:\n  \
rate=10gbit            bits of frames per second (kbit, mbit, gbit)\n  \
trace=FILE             Mahimahi packet-delivery trace, instead of a rate\n  \
delay=1ms jitter=50us  propagation delay, and what is added at random (the order is kept)\n  \
queue=100p/150kb       packets, bytes, both or none; default with a rate 1000p\n  \
ecn=65p                mark capable packets when the queue is longer (packets or bytes)\n  \
loss=1%                each by itself; loss=burst:ENTER/LEAVE[/LOSS_BAD[/LOSS_GOOD]]; loss=list:1+7-9\n  \
reorder=5%/1ms         how many packets are late, and by how much\n  \
duplicate=0.1% corrupt=0.01% truncate=0.01%\n  \
mtu=1400               longer packets vanish\n  \
down=2s-3s+7s-8s       times when the link is down; flap=9s/1s: up, down, again and again\n\n\
Loss strikes segments of the wire's size, also where the interfaces pass super-frames; what is lost takes no capacity.\n\n\
Examples:\n  \
towpath link packet:va packet:vb --both rate=1gbit,delay=10ms,queue=256p\n  \
towpath link packet:eth0@blue packet:eth0@red --forward delay=5ms,loss=1% --backward delay=5ms --seed 7\n  \
towpath link tap:left@blue tap:right@red --both trace=lte.trace,delay=20ms --duration 60s --json";

#[derive(Debug, Args)]
pub struct LinkCommand {
    /// First end of the link
    #[arg(value_name = "A")]
    a: Place,
    /// Second end of the link
    #[arg(value_name = "B")]
    b: Place,
    /// The link from A to B [default: perfect]
    #[arg(long, value_name = "SPEC", value_parser = spec)]
    forward: Option<LinkConfig>,
    /// The link from B to A [default: perfect]
    #[arg(long, value_name = "SPEC", value_parser = spec)]
    backward: Option<LinkConfig>,
    /// The link in both directions
    #[arg(long, value_name = "SPEC", value_parser = spec, conflicts_with_all = ["forward", "backward"])]
    both: Option<LinkConfig>,
    /// The same seed and the same packets have the same fate
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the counters this often, like 1s
    #[arg(long, value_name = "TIME", value_parser = time)]
    stats_interval: Option<Duration>,
    /// Stop after this time, like 60s [default: at SIGINT or SIGTERM]
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

fn spec(text: &str) -> Result<LinkConfig, String> {
    let load =
        |path: &str| std::fs::read_to_string(path).map_err(|e| format!("the trace cannot be read ({e})"));
    LinkConfig::parse(text, load).map_err(|e| e.to_string())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = link::parse_time(text).filter(|time| *time > Duration::ZERO);
    time.ok_or_else(|| format!("`{text}` is no time like 1.5s (s, ms, us, ns) above 0"))
}

impl LinkCommand {
    pub fn execute(self) -> anyhow::Result<()> {
        let one = |given: Option<LinkConfig>| given.or_else(|| self.both.clone()).unwrap_or_default();
        let configs = [one(self.forward), one(self.backward)];
        let stop = service::signals().context("cannot watch signals")?;
        let mut emulator = Emulator::open([self.a.clone(), self.b.clone()], configs, self.seed)?;
        // On stderr, so that stdout contains only JSON. Callers wait for this line.
        eprintln!("towpath link: {} <-> {} is up", self.a, self.b);
        let end = self.duration.map_or(Instant::NEVER, |time| Instant::ZERO.plus(time));
        let mut shown = Instant::ZERO;
        loop {
            let next = self.stats_interval.map_or(Instant::NEVER, |interval| shown.plus(interval));
            let is_told = emulator.run(next.min(end), rustix::fd::AsFd::as_fd(&stop))?;
            show(&emulator.report(), self.json)?;
            if is_told || end <= next {
                return Ok(());
            }
            shown = next;
        }
    }
}

fn show(report: &Report, json: bool) -> anyhow::Result<()> {
    let text = if json { serde_json::to_string(report)? } else { report.to_string() };
    crate::table::print(&text)
}
