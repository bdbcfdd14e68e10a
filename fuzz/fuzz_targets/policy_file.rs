//! Any policy file: rules or one mistake with a line that the file has, and rules that answer whatever is asked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use service::policy::{Door, Limits, Names, Policy, Subject, parse};

/// A machine on which each name that is longer than one byte is known.
struct Machine;

impl Names for Machine {
    fn user(&self, name: &str) -> Option<u32> {
        (name.len() > 1).then_some(7)
    }
    fn group(&self, name: &str) -> Option<u32> {
        self.user(name)
    }
    fn namespace(&self, path: &str) -> Option<u64> {
        self.user(path).map(u64::from)
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let rules = match parse(text, &Machine) {
        Ok(rules) => rules,
        Err(mistake) => {
            let lines = 1 + text.matches('\n').count();
            assert!((1..=lines).contains(&mistake.line), "{mistake}");
            return;
        }
    };
    let policy = Policy::new(Door::Open, rules, 1, Limits::NONE);
    for namespace in [1, 7] {
        let subject = Subject { uid: 7, gid: 7, cgroup: Some("/a/b".to_owned()), namespace };
        for address in ["127.0.0.1:80", "[::]:8080", "0.0.0.0:1"].map(|text| text.parse().expect("an address")) {
            let _ = policy.may_connect(&subject, address);
            if policy.may_listen(&subject, address, false).is_ok() {
                assert_eq!(policy.may_listen(&subject, address, true), Ok(()), "both families hold each one");
            }
        }
        let _ = (policy.admits(&subject), policy.limits(&subject));
    }
});
