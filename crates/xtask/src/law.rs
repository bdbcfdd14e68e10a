//! The dependency law: which crates a crate may depend on.
//!
//! The fast path and the slow path share only `flow` and `queue`; neither knows a backend of `port`. The application's side (`socket`,
//! `preload`) and the service's side share only `base`, `shm`, `queue` and `control`. Dependencies for tests only are not checked.

use crate::workspace::Package;

/// Which crates of the workspace a crate may depend on.
enum May {
    /// Only the crates of this list.
    Need(&'static [&'static str]),
    /// All: the crate measures or drives all others, and only the command line depends on it.
    NeedAny,
}

/// One line for each crate of the workspace.
const LAW: &[(&str, May)] = &[
    ("base", May::Need(&[])),
    ("cycles", May::Need(&[])),
    ("loader", May::Need(&[])),
    ("wire", May::Need(&["base"])),
    ("port", May::Need(&["base", "wire"])),
    ("port-memory", May::Need(&["base", "port", "wire"])),
    ("port-packet", May::Need(&["base", "port", "wire"])),
    ("port-tap", May::Need(&["base", "port", "wire"])),
    ("link", May::Need(&["base", "wire"])),
    ("emulator", May::Need(&["base", "link", "port", "port-packet", "port-tap"])),
    ("shm", May::Need(&["base"])),
    ("queue", May::Need(&["base", "shm"])),
    ("congestion", May::Need(&["base"])),
    ("channel", May::Need(&["base"])),
    ("ccp", May::Need(&["base", "ccp-vm", "ccp-wire"])),
    ("ccp-agent", May::Need(&["base", "ccp-lang", "ccp-vm", "ccp-wire"])),
    ("ccp-algorithms", May::Need(&["ccp-agent"])),
    ("ccp-lang", May::Need(&["ccp-vm"])),
    ("ccp-linux", May::Need(&["base", "ccp", "ccp-vm", "ccp-wire", "control"])),
    ("ccp-python", May::Need(&["base", "ccp-agent", "ccp-try", "sim"])),
    ("ccp-quinn", May::Need(&["ccp-vm"])),
    (
        "ccp-try",
        May::Need(&[
            "base",
            "ccp-agent",
            "ccp-algorithms",
            "ccp-lang",
            "ccp-vm",
            "ccp-wire",
            "congestion",
            "link",
            "sim",
        ]),
    ),
    ("ccp-vm", May::Need(&[])),
    ("ccp-wire", May::Need(&["ccp-vm"])),
    ("flow", May::Need(&["base", "wire", "shm", "queue", "ccp-vm", "congestion"])),
    ("fastpath", May::Need(&["base", "wire", "port", "shm", "queue", "flow"])),
    ("slowpath", May::Need(&["base", "wire", "shm", "queue", "ccp-vm", "flow", "congestion", "control"])),
    ("elastic", May::Need(&["base", "wire", "port", "flow", "slowpath"])),
    ("control", May::Need(&["base", "shm"])),
    ("endpoint", May::Need(&["base", "cycles", "shm", "queue", "control"])),
    ("session", May::Need(&["base", "cycles", "shm", "queue", "control", "endpoint"])),
    ("ring", May::Need(&["base", "cycles", "shm", "queue", "control", "endpoint", "session"])),
    ("ring-c", May::Need(&["ring"])),
    ("ring-tokio", May::Need(&["ring"])),
    ("socket", May::Need(&["base", "cycles", "shm", "queue", "control", "endpoint", "session"])),
    ("preload", May::Need(&["base", "loader", "session", "socket"])),
    ("service", May::Need(SERVICE)),
    (
        "towpath",
        May::Need(&[
            "base",
            "ccp",
            "ccp-lang",
            "ccp-linux",
            "ccp-try",
            "ccp-vm",
            "control",
            "service",
            "bench",
            "link",
            "emulator",
            "script",
            "sim",
        ]),
    ),
    ("bench", May::NeedAny),
    ("sim", May::NeedAny),
    ("packetdrill", May::Need(&["base", "loader", "port", "script", "sim", "wire"])),
    ("script", May::Need(&["base", "congestion", "port", "sim", "wire"])),
    ("xtask", May::Need(&[])),
];

/// The service may depend on all crates of its own side, but on none of the application's side.
const SERVICE: &[&str] = &[
    "base",
    "ccp",
    "ccp-wire",
    "cycles",
    "wire",
    "port",
    "port-memory",
    "port-packet",
    "port-tap",
    "shm",
    "queue",
    "congestion",
    "channel",
    "flow",
    "fastpath",
    "slowpath",
    "elastic",
    "control",
];

/// The file to change if the law must change.
const HERE: &str = "crates/xtask/src/law.rs";

/// Every breach of the law, every crate that is not in the table, and every line of the table without a crate.
pub fn check(packages: &[Package]) -> Vec<String> {
    let mut findings = Vec::new();
    for package in packages {
        let Some((_, may)) = LAW.iter().find(|(noun, _)| *noun == package.noun) else {
            findings.push(format!(
                "{}/Cargo.toml: dependency law: crate `{}` is not in the table; say in {HERE} what it may need",
                package.folder, package.noun
            ));
            continue;
        };
        let May::Need(allowed) = may else { continue };
        for need in package.needs.iter().filter(|need| !allowed.contains(&need.as_str())) {
            findings.push(format!(
                "{}/Cargo.toml: dependency law: `{}` must not need `{need}` (it may need: {}); move the shared part \
                 below both, or make it a dev-dependency",
                package.folder,
                package.noun,
                if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") }
            ));
        }
    }
    for (noun, _) in LAW {
        if !packages.iter().any(|package| package.noun == *noun) {
            findings.push(format!("{HERE}: dependency law: there is no crate `{noun}`; remove its line"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{LAW, May, check};
    use crate::workspace::Package;

    fn reach(noun: &'static str, seen: &mut BTreeSet<&'static str>) {
        let (_, may) =
            LAW.iter().find(|(n, _)| *n == noun).expect("the table names only crates it has a line for");
        let May::Need(allowed) = may else { return };
        for need in *allowed {
            if seen.insert(need) {
                reach(need, seen);
            }
        }
    }

    fn may_reach(from: &'static str, to: &str) -> bool {
        let mut seen = BTreeSet::new();
        reach(from, &mut seen);
        seen.contains(to)
    }

    #[test]
    fn fast_and_slow_path_meet_only_below_both() {
        for (one, other) in [("fastpath", "slowpath"), ("slowpath", "fastpath")] {
            for forbidden in [
                other,
                "port-memory",
                "port-packet",
                "port-tap",
                "service",
                "socket",
                "ring",
                "preload",
                "bench",
            ] {
                assert!(!may_reach(one, forbidden), "{one} could reach {forbidden}");
            }
        }
        assert!(!may_reach("fastpath", "control"));
    }

    #[test]
    fn application_never_reaches_the_stack() {
        for forbidden in ["flow", "fastpath", "slowpath", "port", "wire", "service", "congestion"] {
            assert!(!may_reach("preload", forbidden), "preload could reach {forbidden}");
            assert!(!may_reach("ring", forbidden), "ring could reach {forbidden}");
        }
    }

    #[test]
    fn law_has_no_circle() {
        for (noun, _) in LAW {
            assert!(!may_reach(noun, noun), "{noun} could need itself");
        }
    }

    #[test]
    fn breach_and_unknown_crate_are_found() {
        let package = |noun: &str, needs: &[&str]| Package {
            needs: needs.iter().map(|need| (*need).to_owned()).collect(),
            ..Package::bare(noun)
        };
        let findings = check(&[package("fastpath", &["base", "slowpath"]), package("novelty", &[])]);
        assert!(findings.iter().any(|f| f.contains("`fastpath` must not need `slowpath`")));
        assert!(findings.iter().any(|f| f.contains("crate `novelty` is not in the table")));
        assert!(findings.iter().any(|f| f.contains("there is no crate `wire`")));
    }
}
