//! How evenly two applications of a machine share what comes in.

use base::Duration;
use sim::figure::Shares;

fn shares(flows: [u32; 2], rate: u64) -> Shares {
    Shares { flows, rate, warm_up: Duration::from_secs(2), time: Duration::from_ms(500), seed: 1 }
}

#[test]
fn an_application_with_a_hundred_bulk_flows_is_offered_no_more_than_one_with_a_single_flow() {
    let result = shares([1, 100], 1_000_000_000).run();
    assert!(result.jain_of_windows() >= 0.95, "{result:?}");
}
