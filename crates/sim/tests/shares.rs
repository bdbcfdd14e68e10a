//! How evenly two applications of a machine share what comes in: the sums of the windows that their peers are offered.

use base::Duration;
use sim::figure::{Shares, SharesResult};

fn run(flows: [u32; 2], rate: u64, warm_up_ms: u64) -> SharesResult {
    let (warm_up, time) = (Duration::from_ms(warm_up_ms), Duration::from_ms(200));
    Shares { flows, rate, warm_up, time, seed: 1 }.run()
}

#[test]
fn an_application_with_a_hundred_bulk_flows_is_offered_as_much_as_one_with_a_single_flow() {
    let result = run([1, 100], 1_000_000_000, 2_000);
    assert!(result.jain_of_windows() >= 0.95, "{result:?}");
    assert!(result.goodput > 0.95e9, "{result:?}");
}

/// The windows of a thousand flows would have to fall to two segments each; they stop at 16 KiB.
#[test]
#[ignore = "moves gigabytes"]
fn a_thousand_bulk_flows_are_offered_no_more_than_their_least_windows() {
    let result = run([1, 1_000], 4_000_000_000, 1_200);
    assert!(result.windows[1] <= 1.1 * 1_000.0 * 16_384.0, "{result:?}");
    assert!(result.goodput > 0.95 * 4e9, "{result:?}");
    println!("{result:?}");
}

/// Without a second application all windows are as large as ever.
#[test]
fn a_lone_application_with_bulk_flows_has_the_windows_that_it_wants() {
    for (flows, least) in [([1, 0], 4e6), ([0, 100], 40e6)] {
        let result = run(flows, 1_000_000_000, 2_000);
        let windows = result.windows[0] + result.windows[1];
        assert!(windows > least && result.goodput > 0.95e9, "{result:?}");
    }
}
