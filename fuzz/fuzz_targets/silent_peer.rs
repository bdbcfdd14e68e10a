//! One host that sends bulk to a peer which says what bytes describe, and then falls silent: see `sim::silence`, which also says what must
//! hold.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Err(what) = sim::silence::run(data) {
        panic!("{what}");
    }
});
