//! The measurement `nginx`: unmodified nginx and wrk, a file of 1 KiB over persistent connections.

use crate::bars::{self, Bar, Limit, Measure};
use crate::samples::Sample;
use crate::served::{self, Host, Served};
use crate::{Options, Report};
use anyhow::{Context, bail};

/// Size of the file in bytes.
const FILE: usize = 1024;
/// Number of connections.
const CONNECTIONS: u32 = 100;
const CASE: &str = "nginx/1KB/c100";

const BARS: &[Bar] =
    &[Bar { cases: CASE, metric: "requests", measure: Measure::Over("kernel"), limit: Limit::Least(2.5) }];

/// Runs the measurement `nginx`.
///
/// # Errors
/// When the service or nginx does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("nginx");
    if served::lacks(&["nginx", "wrk"], &mut report) {
        return Ok(report);
    }
    let cases = [(CASE.to_owned(), ())];
    served::compare(&mut report, options, start, &cases, |system, path, (), samples| {
        let result = measure(system, options.seconds())?;
        for (metric, unit, sample) in result {
            samples.add(path, system.name(), metric, unit, sample);
        }
        Ok(())
    })?;
    report.note(format!(
        "one worker of nginx, one thread of wrk, {CONNECTIONS} connections that are kept, whole seconds each; processor time: nginx, \
         wrk, the service and ksoftirqd, per request"
    ));
    bars::judge(&mut report, "towpath", BARS);
    Ok(report)
}

/// Starts nginx with a file of 1 KiB, `/1k`.
///
/// # Errors
/// When it is not installed or does not answer.
pub fn start(host: Host<'_>) -> anyhow::Result<Served<'_>> {
    Served::start(host, "nginx", |command, address, folder| {
        let place = folder.to_str().context("the folder's name is no text")?;
        let mut text = include_str!("../configuration/nginx.conf").replace("@folder@", place);
        text = text
            .replace("@address@", &address.ip().to_string())
            .replace("@port@", &address.port().to_string());
        if rustix::process::geteuid().is_root() {
            // Otherwise nginx's worker would change its user, which has no access to the folder.
            text.insert_str(0, "user root;\n");
        }
        text.insert_str(0, &format!("pid {place}/nginx.pid;\n"));
        let file = folder.join("nginx.conf");
        std::fs::write(&file, text)?;
        std::fs::write(folder.join("1k"), vec![b'x'; FILE])?;
        command.args(["-e", "stderr", "-p"]).arg(folder).arg("-c").arg(file);
        Ok(())
    })
}

type Numbers = Vec<(&'static str, &'static str, Sample)>;

fn measure(server: &Served<'_>, seconds: f64) -> anyhow::Result<Numbers> {
    // wrk takes whole seconds only.
    let whole = seconds.round().max(1.0);
    let mut command = server.client("wrk")?;
    command.args(["-t", "1", "-c", &CONNECTIONS.to_string(), "-d", &format!("{whole}s"), "--latency"]);
    command.arg(format!("http://{}/1k", server.address()));
    let (finished, cpu_ns) = server.run(&mut command, CONNECTIONS, whole + 20.0)?;
    let found = parse(&finished.stdout)?;
    let sample = |value| Sample {
        value,
        cores: Some(cpu_ns / finished.wall_ns as f64),
        cpu_ns: Some(cpu_ns / found.requests),
    };
    Ok(vec![
        ("requests", "1/s", sample(found.rate)),
        ("p50", "us", sample(found.p50_us)),
        ("p99", "us", sample(found.p99_us)),
    ])
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
