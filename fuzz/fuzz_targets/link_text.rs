//! Any text as a link, as a path of `towpath cc try`, as a trace of a line, and as a rule about the kernel's flows: a value or a word. What a
//! link prints is the same link.
#![no_main]

use base::Duration;
use ccp_linux::Rule;
use ccp_try::Path;
use libfuzzer_sys::fuzz_target;
use link::{LinkConfig, Trace};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(link) = text.parse::<LinkConfig>() {
        assert_eq!(link.check(), Ok(()));
        assert_eq!(link.to_string().parse().as_ref(), Ok(&link), "{link}");
    }
    let trace = Trace::parse("fuzz", text).inspect(|trace| assert!(trace.rate_mean() > 0));
    if let Ok(path) = text.parse::<Path>() {
        assert!(path.rtt > Duration::ZERO && path.rate().is_some_and(|rate| rate > 0));
        assert_eq!(path.link.check(), Ok(()));
        assert!(!path.to_string().is_empty());
        let path = path.following(Trace::parse("fuzz", "1\n2\n").expect("a trace"));
        assert_eq!(path.link.check(), Ok(()));
    }
    if let Ok(trace) = trace {
        let path: Path = "48mbit,20ms,2bdp".parse().expect("a path");
        assert_eq!(path.following(trace).link.check(), Ok(()));
    }
    if let Err(why) = text.parse::<Rule>() {
        assert!(why.to_string().contains("port=443"));
    }
});
