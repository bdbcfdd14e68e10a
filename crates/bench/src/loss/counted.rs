//! Counters of each sender about its repairs, which help to explain the result of a point.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

/// Numbers by the names of counters.
pub type Counters = BTreeMap<String, u64>;

/// The counters of the kernel's hundreds that are kept.
const KERNEL: &[&str] = &[
    "OutSegs",
    "RetransSegs",
    "TCPTimeouts",
    "TCPLossProbes",
    "TCPLossProbeRecovery",
    "TCPSackRecovery",
    "TCPFastRetrans",
    "TCPSlowStartRetrans",
    "TCPLostRetransmit",
    "TCPSpuriousRTOs",
    "TCPDSACKRecv",
    "TCPDSACKUndo",
    "TCPFullUndo",
    "TCPLossUndo",
    "TCPSACKReorder",
];

/// The kernel's counters of the network namespace of the process `pid`.
pub fn kernel(pid: u32) -> Counters {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
    let mut all = pairs(&read("snmp"));
    all.extend(pairs(&read("netstat")));
    all.retain(|name, _| KERNEL.contains(&name.as_str()));
    all
}

/// Reads lines in pairs: `Tcp: names`, then `Tcp: numbers`. Several protocols use the same names; only TCP's are read.
fn pairs(text: &str) -> Counters {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Tcp")).collect();
    let both = lines.chunks_exact(2).flat_map(|two| two[0].split(' ').zip(two[1].split(' ')));
    both.filter_map(|(name, number)| Some((name.to_owned(), number.parse().ok()?))).collect()
}

/// Every number below `traffic` in the output of `towpath stat --json`.
pub fn towpath(statistics: &Value) -> Counters {
    let mut all = Counters::new();
    flatten("", &statistics["traffic"], &mut all);
    all
}

fn flatten(name: &str, value: &Value, into: &mut Counters) {
    if let Some(number) = value.as_u64() {
        into.insert(name.to_owned(), number);
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        flatten(&name, value, into);
    }
}

/// How much each counter has grown since `before`; counters that have not grown are left out.
pub fn since(before: &Counters, after: Counters) -> Counters {
    let grown = |name: &str, n: u64| n.saturating_sub(before.get(name).copied().unwrap_or(0));
    let all = after.into_iter().map(|(name, n)| (grown(&name, n), name));
    all.filter(|(n, _)| *n > 0).map(|(n, name)| (name, n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_meet_their_numbers() {
        let text = "Ip: Forwarding OutSegs\nIp: 1 7\nTcp: MaxConn OutSegs RetransSegs\nTcp: -1 900 12\n";
        let found = pairs(text);
        assert_eq!(found, Counters::from([("OutSegs".into(), 900), ("RetransSegs".into(), 12)]));
    }

    #[test]
    fn only_growth_counts() {
        let now = |json: &str| towpath(&serde_json::from_str(json).unwrap());
        let before = now(r#"{"traffic":{"sent_bytes":10,"slow_path":{"timeouts":1}},"other":3}"#);
        let after = now(r#"{"traffic":{"sent_bytes":10,"slow_path":{"timeouts":4,"probes":2}},"other":9}"#);
        let grown = Counters::from([("slow_path.timeouts".into(), 3), ("slow_path.probes".into(), 2)]);
        assert_eq!(since(&before, after), grown);
    }
}
