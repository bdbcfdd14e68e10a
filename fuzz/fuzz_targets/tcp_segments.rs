//! One host under segments, ICMP errors, calls and times that bytes describe: see `sim::directed`, which also says what
//! must hold.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Err(what) = sim::directed::run(data) {
        panic!("{what}");
    }
});
