//! Processor time of other processes.

use std::fs;

/// Processor time in nanoseconds that a process has used so far in all its living threads. A process that has ended but is not yet waited
/// for counts too. `None` if the process does not exist.
pub fn process_ns(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let precise: Option<u64> = threads
        .map(|thread| {
            let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        })
        .sum();
    // Without scheduler statistics the kernel counts in ticks of 10 ms.
    precise.filter(|&ns| ns > 0).or_else(|| ticks_ns(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
}

/// The ids of a process and all its descendants.
pub fn with_children(pid: u32) -> Vec<u32> {
    let mut pids = vec![pid];
    let mut at = 0;
    while let Some(pid) = pids.get(at) {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        let lists =
            threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
        let children: Vec<u32> = lists
            .flat_map(|list| {
                list.split_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<_>>()
            })
            .collect();
        pids.extend(children);
        at += 1;
    }
    pids
}

/// User plus system time of a `/proc/PID/stat` line, in nanoseconds. The command's name may contain spaces and parentheses.
fn ticks_ns(stat: &str) -> Option<u64> {
    const TICK_NS: u64 = 10_000_000;
    let [user, system] = modes(stat)?;
    Some((user + system) * TICK_NS)
}

/// Nanoseconds of a process in user and in system mode; the latter include softirqs that ran on its time.
pub fn split_ns(pid: u32) -> Option<[u64; 2]> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let [user, system] = modes(&stat)?;
    // The ticks give the ratio of the two, the scheduler's statistics their sum.
    let ticks = (user + system).max(1);
    let whole = process_ns(pid)?;
    let system = (u128::from(whole) * u128::from(system) / u128::from(ticks)) as u64;
    Some([whole - system, system])
}

/// Page faults of a process that needed no disk, field 10 of `/proc/PID/stat`. A process that is not yet waited for counts too.
pub fn minor_faults(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    field(&stat, 10)
}

/// Ticks in user and in system mode.
fn modes(stat: &str) -> Option<[u64; 2]> {
    Some([field(stat, 14)?, field(stat, 15)?])
}

/// A field of a `/proc/PID/stat` line, by its number in proc(5), which is 3 or more: those behind the command's name.
fn field(stat: &str, number: usize) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(number - 3)?.parse().ok()
}

/// Counts the processor time of several processes and of the kernel's `ksoftirqd` threads.
#[derive(Clone, Debug)]
pub struct Meter {
    pids: Vec<u32>,
    before_ns: u64,
}

impl Meter {
    /// Starts to count the time of `pids` and of `ksoftirqd`, which handles packets under load.
    pub fn start(pids: &[u32]) -> Self {
        let mut pids = pids.to_vec();
        pids.extend(softirq_threads());
        let before_ns = total(&pids);
        Self { pids, before_ns }
    }

    /// Nanoseconds of processor time since the start.
    pub fn used_ns(&self) -> u64 {
        total(&self.pids).saturating_sub(self.before_ns)
    }
}

fn total(pids: &[u32]) -> u64 {
    pids.iter().filter_map(|&pid| process_ns(pid)).sum()
}

/// Processor time of the kernel's `ksoftirqd` threads, in nanoseconds.
pub fn softirqs_ns() -> u64 {
    total(&softirq_threads())
}

fn softirq_threads() -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_softirq = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
    };
    // Kernel threads are children of process 2 and start at boot, so their ids are small.
    pids.filter(|&pid| pid < 1000).filter(is_softirq).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_name_may_hold_anything() {
        let line = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks_ns(line), Some(420_000_000));
        assert_eq!((modes(line), ticks_ns("7 (cut")), (Some([30, 12]), None));
    }

    /// Measures a child process: in this process, threads of other tests end and take their processor time with them.
    #[test]
    fn the_time_of_a_busy_process_grows() {
        let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let meter = Meter::start(&[busy.id()]);
        let start = std::time::Instant::now();
        while meter.used_ns() < 10_000_000 && start.elapsed().as_secs() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let used_ns = meter.used_ns();
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(used_ns >= 10_000_000, "{used_ns}");
    }
}
