//! The measurement `nginx`: unmodified nginx and wrk, a file of 1 KiB over persistent connections, and over a connection for each request.

use crate::bars::{self, Bar, Limit, Measure};
use crate::launch;
use crate::samples::{Sample, Samples};
use crate::served::{self, Host, Served};
use crate::{Options, Report};
use anyhow::{Context, bail};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// Size of the file in bytes.
const FILE: usize = 1024;
/// Connections that are kept.
const KEPT: u32 = 100;

/// What wrk does.
#[derive(Clone, Copy)]
struct Case {
    /// Connections at one time.
    connections: u32,
    /// Each request has a connection of its own.
    once: bool,
}

/// The processes of nginx that accept.
#[derive(Clone, Copy)]
struct Workers {
    count: u32,
    /// The user that they run as, where nginx is started by root.
    user: &'static str,
}

const ONE: Workers = Workers { count: 1, user: "root" };
const THREE: Workers = Workers { count: 3, user: "root" };
/// Another user than the client's: the service relays.
const OTHERS: Workers = Workers { count: 1, user: "www-data" };

const CASE: &str = "nginx/1KB/c100";
const fn over_kernel(cases: &'static str, least: f64) -> Bar {
    Bar { cases, metric: "requests", measure: Measure::Over("kernel"), limit: Limit::Least(least) }
}
const BARS: &[Bar] = &[
    over_kernel(CASE, 2.5),
    over_kernel("nginx/1KB/once/c16/w1", 1.5),
    over_kernel("nginx/1KB/once/c1/w1", 1.2),
    over_kernel("nginx/1KB/once/c16/w3", 1.5),
    over_kernel("nginx/1KB/once/c1/w3", 1.2),
    over_kernel("nginx/1KB/once/c16/other-user", 1.0),
    over_kernel("nginx/1KB/once/c1/other-user", 1.0),
];

/// Runs the measurement `nginx`.
///
/// # Errors
/// When the service or nginx does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("nginx");
    if served::lacks(&["nginx", "wrk"], &mut report) {
        return Ok(report);
    }
    let once = |of: &str| {
        [16, 1].map(|connections| {
            (format!("nginx/1KB/once/c{connections}/{of}"), Case { connections, once: true })
        })
    };
    let kept = (CASE.to_owned(), Case { connections: KEPT, once: false });
    let of_one = [vec![kept], once("w1").to_vec()].concat();
    let act = |server: &Served<'_>, path: &str, case: &Case, samples: &mut Samples| {
        measure(server, path, *case, options.seconds(), samples)
    };
    served::compare(&mut report, options, start, &of_one, act)?;
    served::compare(&mut report, options, |host| start_with(host, THREE), &once("w3"), act)?;
    if rustix::process::geteuid().is_root() {
        let others = once("other-user");
        served::compare(&mut report, options, |host| start_with(host, OTHERS), &others, act)?;
    } else {
        report.note("skipped: workers of another user need root");
    }
    report.note(format!(
        "one thread of wrk, {KEPT} connections that are kept, or 1 and 16 at a time with one request each (`Connection: close`), whole seconds each; \
         w1, w3: workers of nginx; other-user: one worker of user www-data, relayed; processor time: nginx, wrk, the service and ksoftirqd, per request"
    ));
    bars::judge(&mut report, "towpath", BARS);
    Ok(report)
}

/// Starts nginx with one worker and a file of 1 KiB, `/1k`.
///
/// # Errors
/// When it is not installed or does not answer.
pub fn start(host: Host<'_>) -> anyhow::Result<Served<'_>> {
    start_with(host, ONE)
}

fn start_with(host: Host<'_>, workers: Workers) -> anyhow::Result<Served<'_>> {
    Served::start(host, "nginx", |command, address, folder| {
        let place = folder.to_str().context("the folder's name is no text")?;
        let mut text = include_str!("../configuration/nginx.conf").replace("@folder@", place);
        text = text
            .replace("@address@", &address.ip().to_string())
            .replace("@port@", &address.port().to_string())
            .replace("@workers@", &workers.count.to_string());
        if rustix::process::geteuid().is_root() {
            // Otherwise nginx's workers would change their user, which has no access to the folder.
            text.insert_str(0, &format!("user {};\n", workers.user));
            std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        }
        text.insert_str(0, &format!("pid {place}/nginx.pid;\n"));
        let file = folder.join("nginx.conf");
        std::fs::write(&file, text)?;
        std::fs::write(folder.join("1k"), vec![b'x'; FILE])?;
        command.args(["-e", "stderr", "-p"]).arg(folder).arg("-c").arg(file);
        Ok(())
    })
}

fn measure(
    server: &Served<'_>,
    path: &str,
    case: Case,
    seconds: f64,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    // wrk takes whole seconds only.
    let whole = seconds.round().max(1.0);
    let mut command = server.client("wrk")?;
    command.args(["-t", "1", "-c", &case.connections.to_string(), "-d", &format!("{whole}s"), "--latency"]);
    if case.once {
        command.args(["-H", "Connection: close"]);
    }
    command.arg(format!("http://{}/1k", server.address()));
    let before = server.accepted()?;
    let (finished, cpu_ns) = server.run(&mut command, case.connections, whole + 20.0)?;
    let found = parse(&finished.stdout)?;
    if let (true, Some(before), Some(after)) = (case.once, before, server.accepted()?) {
        let new = after.checked_sub(before).context("a worker has ended, and its counts with it")?;
        launch::prove(new, found.requests as u32)?;
    }
    let numbers = [("requests", "1/s", found.rate), ("p50", "us", found.p50_us), ("p99", "us", found.p99_us)];
    for (metric, unit, value) in numbers {
        let (cores, cpu_ns) = (Some(cpu_ns / finished.wall_ns as f64), Some(cpu_ns / found.requests));
        samples.add(path, server.name(), metric, unit, Sample { value, cores, cpu_ns });
    }
    Ok(())
}

/// The numbers that wrk prints.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Found {
    requests: f64,
    rate: f64,
    p50_us: f64,
    p99_us: f64,
}

fn parse(text: &str) -> anyhow::Result<Found> {
    let lines = || text.lines().map(str::trim);
    if let Some(errors) =
        lines().find(|line| line.starts_with("Socket errors") || line.starts_with("Non-2xx"))
    {
        bail!("wrk: {errors}");
    }
    let after = |word: &str| lines().find_map(|line| line.strip_prefix(word)).map(str::trim);
    let number = |word: &str| after(word).and_then(|text| text.parse::<f64>().ok());
    let requests = lines().find_map(|line| line.split_once(" requests in ")?.0.parse::<f64>().ok());
    let numbers = requests.zip(number("Requests/sec:"));
    let latencies = after("50%").and_then(microseconds).zip(after("99%").and_then(microseconds));
    let ((requests, rate), (p50_us, p99_us)) = numbers.zip(latencies).context("wrk printed no result")?;
    Ok(Found { requests, rate, p50_us, p99_us })
}

/// Reads a duration such as `1.25ms`.
fn microseconds(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    units.iter().find_map(|(unit, us)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * us))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Running 1s test @ http://127.0.0.1:1/1k\n  1 threads and 100 connections\n  Thread Stats   Avg\n\
        \x20 Latency Distribution\n     50%  636.00us\n     75%  700.00us\n     90%    1.10ms\n     99%    2.25ms\n\
        \x20 65123 requests in 1.10s, 78.2MB read\nRequests/sec:  59123.45\nTransfer/sec:     71.06MB\n";

    #[test]
    fn the_distribution_and_the_rate_are_read() {
        let found = Found { requests: 65_123.0, rate: 59_123.45, p50_us: 636.0, p99_us: 2250.0 };
        assert_eq!(parse(TEXT).unwrap(), found);
        assert_eq!(microseconds("1.5s"), Some(1.5e6));
    }

    #[test]
    fn errors_are_no_result() {
        assert!(
            parse(&TEXT.replace("Requests/sec", "Socket errors: connect 0, read 3\nRequests/sec")).is_err()
        );
        assert!(parse("unable to connect").is_err());
    }
}
