//! CCP paper, Figure 7: five flows of one address, ten seconds apart, share one window.

use ccp_agent::Aggregated;
use ccp_algorithms::aggregate::BySource;

use crate::model::{MSS, Path, World, ms};

#[test]
fn windows_are_equal_a_round_trip_after_a_flow_has_joined() {
    let path = Path::new(96.0, 20, 1.0);
    let mut world = World::new(path, Aggregated::new(BySource));
    for id in 0..5 {
        world.flow(id, id * 10_000, 100_000);
    }
    for joined in 1..5_u64 {
        world.run(joined * 10_000 - 100);
        let before: u64 = world.senders.values().map(|sender| sender.cwnd).sum();
        world.run(joined * 10_000 + 40);
        let windows: Vec<u64> = world.senders.values().map(|sender| sender.cwnd).collect();
        assert_eq!(windows.len() as u64, joined + 1);
        let (least, most) = (windows.iter().min().expect("flows"), windows.iter().max().expect("flows"));
        assert!(most - least <= MSS, "{windows:?}");
        let sum = windows.iter().sum::<u64>() as f64 / before as f64;
        assert!((sum - 1.0).abs() < 0.1 || sum > 0.85 - 0.5 / joined as f64, "{sum} of the window before");
    }
    world.run(60_000);
    let rates: Vec<f64> = world.senders.values().map(|sender| sender.mbit(ms(45_000), ms(60_000))).collect();
    assert!(rates.iter().sum::<f64>() > 85.0, "{rates:?}");
    assert!(rates.iter().all(|rate| (rate / rates[0] - 1.0).abs() < 0.1), "{rates:?}");
}
