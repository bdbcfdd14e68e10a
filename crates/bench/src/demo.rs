//! `towpath demo`: redis through Towpath and on the kernel, side by side.

use crate::launch::{Port, Service};
use crate::options::Options;
use crate::redis::{self, CASES, Case, Measured, local};
use crate::samples::median;
use crate::served::Served;
use crate::table::{bar, number};
use crate::{Report, program};
use std::io::{IsTerminal, Write};

/// Runs of each case on each system.
const ROUNDS: usize = 3;
/// Duration of one run in seconds; all runs together take about half a minute.
const SECONDS: f64 = 0.8;

/// The medians of one case on both systems.
struct Line {
    case: Case,
    /// Towpath's, then the kernel's.
    medians: [Measured; 2],
}

/// Colours the output if it goes to a terminal and `NO_COLOR` is not set.
struct Paint {
    on: bool,
}

impl Paint {
    fn new() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { on: std::io::stdout().is_terminal() && !refused }
    }

    fn strong(&self, text: &str) -> String {
        if self.on { format!("\x1b[1;32m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn faint(&self, text: &str) -> String {
        if self.on { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Runs the demo; see [`crate::demo`].
pub fn run() -> anyhow::Result<()> {
    for name in ["redis-server", "redis-benchmark", "redis-cli"] {
        program::find(name)?;
    }
    let paint = Paint::new();
    let mut out = std::io::stdout().lock();
    let options = Options::default_for_demo();
    // This report is not printed: the first line says that two cores are used.
    let mut report = Report::new("demo");
    local::limit_cores(&mut report)?;
    writeln!(
        out,
        "Unmodified redis-server and redis-benchmark, two cores in all, interleaved: through Towpath, on the kernel.\n\
         {ROUNDS} rounds of {} cases; about half a minute.",
        shown().count()
    )?;
    let service = Service::start(&options, Port::None)?;
    let systems = local::systems(&service)?;
    let mut lines = Vec::new();
    for case in shown() {
        let line = measure(case, &systems)?;
        print_line(&mut out, &line, &paint)?;
        lines.push(line);
    }
    systems.into_iter().for_each(Served::stop);
    service.stop();
    print_end(&mut out, &lines, &paint)?;
    Ok(())
}

/// The cases that the demo shows.
fn shown() -> impl Iterator<Item = Case> {
    CASES.into_iter().filter(|case| case.test == "get" || (case.clients, case.pipeline) == (50, 1))
}

fn measure(case: Case, systems: &[Served<'_>; 2]) -> anyhow::Result<Line> {
    let mut runs: [Vec<Measured>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (system, runs) in systems.iter().zip(&mut runs) {
            runs.push(redis::measure(system, case, SECONDS)?);
        }
    }
    let medians = runs.map(|runs| {
        let of =
            |f: fn(&Measured) -> f64| median(&runs.iter().map(f).collect::<Vec<_>>()).unwrap_or(f64::NAN);
        Measured {
            rate: of(|m| m.rate),
            p50_us: of(|m| m.p50_us),
            p99_us: of(|m| m.p99_us),
            cpu_ns: of(|m| m.cpu_ns),
            server_ns: of(|m| m.server_ns),
            cores: of(|m| m.cores),
        }
    });
    Ok(Line { case, medians })
}

fn print_line(out: &mut impl Write, line: &Line, paint: &Paint) -> std::io::Result<()> {
    let Case { test, clients, pipeline, .. } = line.case;
    let plural = if clients == 1 { "" } else { "s" };
    let title = format!("{} · {clients} connection{plural} · pipeline {pipeline}", test.to_uppercase());
    let columns = ["requests/s", "p50 us", "p99 us", "CPU-ns/req", "cores"];
    write!(out, "\n{title}\n{:<10}", "")?;
    for column in columns {
        write!(out, "{column:>12}")?;
    }
    writeln!(out)?;
    let most = line.medians.iter().map(|m| m.rate).fold(0.0, f64::max);
    for (name, m) in ["towpath", "kernel"].into_iter().zip(&line.medians) {
        write!(out, "  {name:<8}")?;
        for value in [m.rate, m.p50_us, m.p99_us, m.cpu_ns, m.cores] {
            write!(out, "{:>12}", number(value))?;
        }
        let bar = bar(m.rate / most);
        let bar = if name == "towpath" { paint.strong(&bar) } else { paint.faint(&bar) };
        writeln!(out, "  {bar}")?;
    }
    out.flush()
}

fn print_end(out: &mut impl Write, lines: &[Line], paint: &Paint) -> std::io::Result<()> {
    let ratio = |line: &Line, f: fn(&Measured) -> f64| f(&line.medians[0]) / f(&line.medians[1]);
    let find = |clients| {
        lines.iter().find(|l| (l.case.test, l.case.clients, l.case.pipeline) == ("get", clients, 1))
    };
    if let (Some(many), Some(one)) = (find(50), find(1)) {
        let headline = format!(
            "With 50 connections, the same redis binary answers {:.2} times as many GETs per second as on the kernel, for \
             {:.2} times the processor time each; with one connection its median latency is {:.2} times the kernel's.",
            ratio(many, |m| m.rate),
            ratio(many, |m| m.cpu_ns),
            ratio(one, |m| m.p50_us),
        );
        writeln!(out, "\n{}", paint.strong(&headline))?;
    }
    writeln!(
        out,
        "\nTry next:\n  towpath run -- redis-server          any program; another `towpath run` shares its service\n  \
         towpath run -- redis-cli             a client, accelerated too\n  towpath ss                           its \
         sockets\n  towpath bench redis --quick          the same as numbers, with --json for programs"
    )
}
