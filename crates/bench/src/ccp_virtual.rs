//! The measurement `ccp-virtual`: figures 3, 5 and 7 to 11 of the CCP paper (SIGCOMM 2018) in the simulator, with our agents in the place of the
//! paper's, and the laws that are built in as their peers. No time is measured but the simulator's own: the numbers are the same on every machine.
//! `towpath cc try` draws what is counted here; a note says how.

pub mod curves;

use crate::bars::{self, Bar, Limit, Measure};
use crate::parallel::in_parallel;
use crate::samples::Samples;
use crate::{Options, Report};
use anyhow::anyhow;
use base::Duration;
use ccp_try::Race;
use sim::AgentMaker;
use sim::figure::{Transfers, TransfersResult};

/// The systems: an algorithm of crate `ccp-algorithms`, and the law of the same name that is built in.
const PROGRAM: &str = "program";
const BUILT_IN: &str = "built-in";

/// Figure 5: so many doublings of a window of 10 segments fit into the path.
const DOUBLINGS: usize = 5;
/// Figure 10: the links, each with its name in cases; the second follows a trace of changing rates.
const LINKS: [(&str, &str); 3] =
    [("fixed", "48mbit,20ms,1bdp"), ("cell", "24mbit,20ms,4bdp"), ("drop", "48mbit,20ms,1bdp,loss=0.01%")];
const LAWS: [&str; 2] = ["cubic", "reno"];
/// Minutes of figure 10 for each run: "twenty 1-minute experiments" with five.
const MINUTES: usize = 4;
/// Figure 11: messages of a run (the paper: 100,000).
const MESSAGES: usize = 100_000;
const MESSAGES_QUICK: usize = 5_000;

/// What is held against the paper; docs/evaluation.md has the reasons.
const BARS: &[Bar] = &[
    alone("ccp3", "goodput", Limit::Least(0.93)),
    alone("ccp3", "pulse", Limit::Least(7.2)),
    alone("ccp3", "pulse", Limit::Most(8.8)),
    alone("ccp3", "dip distance", Limit::Least(9.5)),
    alone("ccp3", "dip distance", Limit::Most(10.5)),
    alone("ccp3", "dip window", Limit::Most(4.0)),
    alone("ccp5/ss-window", "off", Limit::Most(0.05)),
    alone("ccp5/ss-agent", "behind", Limit::Most(1.2)),
    alone("ccp7/aggregate", "spread", Limit::Most(1.0)),
    alone("ccp8/cubic", "goodput", Limit::Least(0.9)),
    alone("ccp8/cubic", "back-off", Limit::Least(0.65)),
    alone("ccp8/cubic", "back-off", Limit::Most(0.75)),
    alone("ccp8/copa", "rate", Limit::Least(8.2)),
    alone("ccp8/copa", "delay", Limit::Most(15.0)),
    over("ccp9", "window", Limit::Least(0.95)),
    over("ccp9", "window", Limit::Most(1.05)),
    over("ccp10/", "throughput p25", Limit::Least(0.95)),
    over("ccp10/", "throughput p25", Limit::Most(1.05)),
    over("ccp10/", "throughput p50", Limit::Least(0.95)),
    over("ccp10/", "throughput p50", Limit::Most(1.05)),
    over("ccp10/", "throughput p75", Limit::Least(0.95)),
    over("ccp10/", "throughput p75", Limit::Most(1.05)),
    over("ccp10/", "delay p25", Limit::Least(0.95)),
    over("ccp10/", "delay p25", Limit::Most(1.05)),
    over("ccp10/", "delay p50", Limit::Least(0.95)),
    over("ccp10/", "delay p50", Limit::Most(1.05)),
    over("ccp10/", "delay p75", Limit::Least(0.95)),
    over("ccp10/", "delay p75", Limit::Most(1.05)),
    over("ccp11/all", "p50", Limit::Most(1.01)),
    over("ccp11/all", "p75", Limit::Most(1.05)),
    over("ccp11/all", "p95", Limit::Most(1.30)),
    over("ccp11/long", "p50", Limit::Most(1.22)),
];

const fn alone(cases: &'static str, metric: &'static str, limit: Limit) -> Bar {
    Bar { cases, metric, measure: Measure::Alone, limit }
}

const fn over(cases: &'static str, metric: &'static str, limit: Limit) -> Bar {
    Bar { cases, metric, measure: Measure::Over(BUILT_IN), limit }
}

/// Runs the measurement `ccp-virtual`.
///
/// # Errors
/// Never, as long as the names and links of this file are right.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("ccp-virtual");
    let mut samples = Samples::default();
    pulses(options, &mut samples)?;
    starts(options, &mut samples)?;
    shares(options, &mut samples)?;
    same_program(options, &mut samples)?;
    windows(options, &mut samples)?;
    quartiles(options, &mut samples)?;
    completions(options, &mut samples, &mut report);
    report.rows = samples.rows();
    report.ratios = samples.ratios(PROGRAM, &[BUILT_IN]);
    bars::judge(&mut report, PROGRAM, BARS);
    notes(&mut report);
    Ok(report)
}

/// One algorithm alone over one link.
#[derive(Clone, Debug)]
struct Solo {
    name: String,
    link: &'static str,
    trace: Option<(String, String)>,
    flows: u32,
    seconds: f64,
    seed: u64,
}

impl Solo {
    fn new(name: &str, link: &'static str, seconds: f64, seed: u64) -> Self {
        Self { name: name.to_owned(), link, trace: None, flows: 1, seconds, seed }
    }

    fn run(&self) -> Result<Race, String> {
        let options = ccp_try::Options {
            link: self.link.to_owned(),
            trace: self.trace.clone(),
            flows: self.flows,
            seconds: self.seconds,
            seed: self.seed,
            ..ccp_try::Options::default()
        };
        let contestant = ccp_try::Contestant::named(&self.name).map_err(|why| why.to_string())?;
        let mut outcome = options.trial(contestant, None)?.run();
        outcome.races.pop().ok_or_else(|| "no run".to_owned())
    }
}

/// Runs each, and looks at it where it ran.
fn look_at<R: Send>(solos: &[Solo], look: impl Fn(&Race) -> R + Sync) -> anyhow::Result<Vec<R>> {
    let results = in_parallel(solos, |solo| solo.run().map(|race| look(&race)));
    results.into_iter().map(|result| result.map_err(|why| anyhow!(why))).collect()
}

/// The system's name for the algorithm: the law that is built in, or the program.
fn systems(name: &str) -> [(&'static str, String); 2] {
    [(PROGRAM, format!("ccp:{name}")), (BUILT_IN, name.to_owned())]
}

fn seeds(options: &Options) -> impl Iterator<Item = u64> + Clone + use<> {
    1..=options.runs() as u64
}

/// Figure 3: BBR's pulses of eight round trips, and its dips each ten seconds.
fn pulses(options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    const LINK: &str = "48mbit,20ms,2bdp";
    // The pulses of one round trip need looks each few milliseconds: a short run has them.
    let short: Vec<Solo> = seeds(options).map(|seed| Solo::new("ccp:bbr", LINK, 9.0, seed)).collect();
    let periods = look_at(&short, |race| {
        let rtts = race.setting.path.rtt.as_ns() as f64 / 1e9;
        curves::period(&curves::of_flow(race, |sample| sample.rate as f64), 3.0).map(|period| period / rtts)
    })?;
    let long: Vec<Solo> = seeds(options).map(|seed| Solo::new("ccp:bbr", LINK, 35.0, seed)).collect();
    let dips = look_at(&long, |race| {
        let windows = curves::of_flow(race, |sample| f64::from(sample.cwnd) / curves::SEGMENT);
        (race.utilisation().unwrap_or(0.0), curves::dips(&windows, 3.0))
    })?;
    for (period, (goodput, (distance, least))) in periods.into_iter().zip(dips) {
        let mut add =
            |metric: &str, unit: &str, value: f64| samples.add("ccp3", PROGRAM, metric, unit, value);
        add("pulse", "round trips", period.unwrap_or(f64::NAN));
        add("dip distance", "s", distance.unwrap_or(f64::NAN));
        add("dip window", "segments", least);
        add("goodput", "of the link", goodput);
    }
    Ok(())
}

/// Figure 5: slow start in the datapath and in the agent, beside Reno's that is built in.
fn starts(options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    const LINK: &str = "48mbit,100ms,2bdp";
    let names = ["ss-window", "ss-agent"];
    for seed in seeds(options) {
        let solos: Vec<Solo> =
            [names[0], names[1], "reno"].map(|name| Solo::new(name, LINK, 2.0, seed)).into();
        let curves = look_at(&solos, |race| curves::since_begin(race, DOUBLINGS))?;
        let [window, agent, reno] = &curves[..] else { continue };
        samples.add("ccp5/ss-window", PROGRAM, "off", "of the window", curves::off(window, reno));
        samples.add("ccp5/ss-agent", PROGRAM, "behind", "round trips", curves::behind(agent, reno));
    }
    Ok(())
}

/// Figure 7: five flows with one window beside five that decide alone.
fn shares(options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    for name in ["aggregate", "ccp:reno"] {
        let five = |seed| Solo { flows: 5, ..Solo::new(name, "96mbit,20ms,1bdp", 10.0, seed) };
        let solos: Vec<Solo> = seeds(options).map(five).collect();
        let found = look_at(&solos, |race| (curves::spread(race), race.jain()))?;
        let case = format!("ccp7/{}", name.trim_start_matches("ccp:"));
        for (spread, jain) in found {
            samples.add(&case, PROGRAM, "spread", "segments", spread);
            samples.add(&case, PROGRAM, "jain", "", jain);
        }
    }
    Ok(())
}

/// Figure 8, the datapath that is Towpath: what Cubic and Copa reach, and how Cubic falls.
fn same_program(options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    let seconds = if options.quick { 15.0 } else { 30.0 };
    let cubic = |seed| Solo::new("ccp:cubic", "24mbit,20ms,1bdp", seconds, seed);
    let found = look_at(&seeds(options).map(cubic).collect::<Vec<_>>(), |race| {
        let windows = curves::of_flow(race, |sample| f64::from(sample.cwnd));
        (race.utilisation().unwrap_or(0.0), curves::back_off(&windows))
    })?;
    for (goodput, back_off) in found {
        samples.add("ccp8/cubic", PROGRAM, "goodput", "of the link", goodput);
        samples.add("ccp8/cubic", PROGRAM, "back-off", "", back_off.unwrap_or(f64::NAN));
    }
    let copa = |seed| Solo::new("ccp:copa", "12mbit,25ms,4bdp", seconds, seed);
    // A full packet takes 1.01 ms.
    let found = look_at(&seeds(options).map(copa).collect::<Vec<_>>(), |race| {
        (race.throughputs()[0] / 1e6, race.queue_figures().mean * 1.01)
    })?;
    for (rate, delay) in found {
        samples.add("ccp8/copa", PROGRAM, "rate", "Mbit/s", rate);
        samples.add("ccp8/copa", PROGRAM, "delay", "ms", delay);
    }
    Ok(())
}

/// Figure 9: Cubic's window over time, as a program and built in.
fn windows(options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    let seconds = if options.quick { 15.0 } else { 30.0 };
    for (system, name) in systems("cubic") {
        let solo = |seed| Solo::new(&name, "96mbit,20ms,1bdp", seconds, seed);
        let solos: Vec<Solo> = seeds(options).map(solo).collect();
        let found = look_at(&solos, |race| race.flow_figures(&race.flows[0]).cwnd_mean / curves::SEGMENT)?;
        found.into_iter().for_each(|window| samples.add("ccp9", system, "window", "segments", window));
    }
    Ok(())
}

/// Figure 10: how throughput and round-trip time are distributed over three links.
fn quartiles(options: &Options, samples: &mut Samples) -> anyhow::Result<()> {
    let (seconds, times) = if options.quick { (20.0, 1) } else { (60.0, MINUTES) };
    let seeds = 1..=(options.runs() * times) as u64;
    for (link, text) in LINKS {
        for law in LAWS {
            for (system, name) in systems(law) {
                let trace = |seed| (link == "cell").then(|| ("cell".to_owned(), curves::cell_trace(seed)));
                let solo = |seed| Solo { trace: trace(seed), ..Solo::new(&name, text, seconds, seed) };
                let solos: Vec<Solo> = seeds.clone().map(solo).collect();
                for (throughput, delay) in look_at(&solos, curves::distributions)? {
                    let case = format!("ccp10/{link}/{law}");
                    for (rank, share) in ["p25", "p50", "p75"].iter().enumerate() {
                        let metric = |what| format!("{what} {share}");
                        samples.add(&case, system, &metric("throughput"), "Mbit/s", throughput[rank]);
                        samples.add(&case, system, &metric("delay"), "ms", delay[rank]);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Figure 11: completion times of messages over connections that stay, Reno as a program and built in.
fn completions(options: &Options, samples: &mut Samples, report: &mut Report) {
    let messages = if options.quick { MESSAGES_QUICK } else { MESSAGES };
    let maker = AgentMaker::new(|| {
        let mut agent = ccp_algorithms::all().expect("a test of that crate adds them all");
        agent.prefer("reno").expect("it is one of them");
        agent
    });
    let of = |agent: Option<AgentMaker>| {
        seeds(options).map(move |seed| Transfers {
            agent: agent.clone(),
            messages,
            staleness: STALENESS,
            seed,
        })
    };
    let settings: Vec<Transfers> = of(Some(maker)).chain(of(None)).collect();
    let results = in_parallel(&settings, Transfers::run);
    let (programs, built_in) = results.split_at(options.runs());
    for (system, results) in [(PROGRAM, programs), (BUILT_IN, built_in)] {
        results.iter().for_each(|result| add(samples, system, result));
    }
    let left: usize = results.iter().map(|result| result.left).sum();
    report.note(format!(
        "ccp11: {messages} messages a run over connections that stay, 192 Mbit/s, round trip 100 ms, half of the link; {left} were not over \
         at the end"
    ));
}

/// From a report until the answer is in force, as in figure 14.
const STALENESS: Duration = Duration::from_us(20);

fn add(samples: &mut Samples, system: &str, result: &TransfersResult) {
    for (what, times) in [("all", &result.all), ("short", &result.short), ("long", &result.long)] {
        for (metric, ms) in ["p50", "p75", "p95"].iter().zip(times) {
            samples.add(&format!("ccp11/{what}"), system, metric, "ms", *ms);
        }
    }
}

/// How each figure is drawn.
fn notes(report: &mut Report) {
    let drawn = [
        ("3", "ccp:bbr --link 48mbit,20ms,2bdp --seconds 35"),
        ("5", "ss-agent --link 48mbit,100ms,2bdp --seconds 3 --against ss-window"),
        ("7", "aggregate --link 96mbit,20ms,1bdp --flows 5 --against ccp:reno"),
        ("8", "copa --link 12mbit,25ms,4bdp"),
        ("9", "ccp:cubic --link 96mbit,20ms,1bdp --against cubic"),
    ];
    for (figure, words) in drawn {
        report.note(format!("ccp{figure} is drawn by: towpath cc try {words} --html FILE"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_has_a_case_that_is_measured() {
        let of_ten = LINKS.iter().flat_map(|(link, _)| LAWS.map(|law| format!("ccp10/{link}/{law}")));
        let others = [
            "ccp3",
            "ccp5/ss-window",
            "ccp5/ss-agent",
            "ccp7/aggregate",
            "ccp8/cubic",
            "ccp8/copa",
            "ccp9",
            "ccp11/all",
            "ccp11/long",
        ];
        let cases: Vec<String> = of_ten.chain(others.map(str::to_owned)).collect();
        for bar in BARS {
            let is_it =
                |case: &String| case == bar.cases || bar.cases.ends_with('/') && case.starts_with(bar.cases);
            assert!(cases.iter().any(is_it), "{}", bar.cases);
        }
    }

    /// Two of the figures, one seed: their bars hold.
    #[test]
    fn copa_and_slow_start_keep_their_bars() {
        let options = Options { runs: Some(1), ..Options::default_for_demo() };
        let mut samples = Samples::default();
        starts(&options, &mut samples).expect("names and links are right");
        same_program(&options, &mut samples).expect("names and links are right");
        let mut report = Report::new("ccp-virtual");
        report.rows = samples.rows();
        let of_these = |bar: &&Bar| bar.cases.starts_with("ccp5") || bar.cases.starts_with("ccp8");
        let bars: Vec<&Bar> = BARS.iter().filter(of_these).collect();
        bars.iter().for_each(|bar| bars::judge(&mut report, PROGRAM, std::slice::from_ref(*bar)));
        assert_eq!(report.failures, Vec::<String>::new());
        assert_eq!(report.notes.len(), bars.len());
    }
}
