//! The time from a peer's write to the return of a blocked call, compared with a bare eventfd between the same processes; and the processor
//! time of a call that stays blocked. The connection in the epoll set is only used for `epoll_wait`.

use super::acts::wake::{Ask, BLOCKED, SETTLED, Way};
use super::ask;
use super::pair::Pair;
use crate::samples::Samples;
use crate::{affinity, cpu};
use anyhow::{Context, bail};

/// Measures wake-up times on a new pair of processes, on one core and on two.
pub fn measure(pair: &Pair<'_>, rounds: u32, samples: &mut Samples) -> anyhow::Result<()> {
    let all = affinity::allowed();
    let [first, rest @ ..] = all.as_slice() else { bail!("no processor") };
    let mut places = vec![("one-core", [vec![*first], vec![*first]])];
    if let Some(second) = rest.first() {
        places.push(("two-cores", [vec![*first], vec![*second]]));
    }
    for (place, cpus) in places {
        let [near, far] = cpus.map(ask::Ask::Pin);
        pair.both(&near, &far)?;
        let (read, write) = (Ask::Read(rounds), Ask::Write(rounds));
        let (times, _) = pair.both(&ask::Ask::Wake(read), &ask::Ask::Wake(write))?;
        let eventfd = *times.first().context("no time of the eventfd")?;
        for (way, us) in Way::ALL.into_iter().zip(&times).skip(1) {
            let case = format!("sockets/wake/{place}/{}", way.name());
            samples.add(&case, pair.name, "wake", "us", *us);
            if pair.is_accelerated() {
                samples.add(&case, "eventfd", "wake", "us", eventfd);
            }
        }
    }
    pair.both(&ask::Ask::Pin(all.clone()), &ask::Ask::Pin(all.clone()))?;
    Ok(())
}

/// Measures the processor time of blocked calls.
pub fn measure_blocked(pair: &Pair<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    for way in Way::ALL.into_iter().skip(1) {
        let service = || pair.service.and_then(|service| cpu::process_ns(service.pid()));
        let before = service();
        let (percent, _) =
            pair.both(&ask::Ask::Wake(Ask::Block(way)), &ask::Ask::Wake(Ask::WriteLate(way)))?;
        let case = format!("sockets/blocked/{}", way.name());
        for percent in percent {
            samples.add(&case, pair.name, "processor time", "% of a core", percent);
        }
        if let (Some(before), Some(after)) = (before, service()) {
            let percent = (after - before) as f64 / (SETTLED + BLOCKED).as_nanos() as f64 * 100.0;
            samples.add(&case, "service", "processor time", "% of a core", percent);
        }
    }
    Ok(())
}
