use base::Duration;
use sim::figure::Shares;
fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|s| s.parse().unwrap()).collect();
    let s = Shares { flows: [a[0] as u32, a[1] as u32], rate: a[2] * 1_000_000, warm_up: Duration::from_ms(a[3]), time: Duration::from_ms(a[4]), seed: a[5] };
    let t = std::time::Instant::now();
    let r = s.run();
    println!("{:?} jainW {:.3} jainB {:.3} {:?} in {:?}", s.flows, r.jain_of_windows(), r.jain_of_bytes(), r, t.elapsed());
}
