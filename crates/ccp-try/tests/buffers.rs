//! Buffers of a trial: by default no algorithm is bounded by them, and where one is, the trial says so.

use ccp_try::{Contestant, Env, EnvSetting, Options, Outcome};

fn run(name: &str, link: &str, seconds: f64, buffer: Option<&str>) -> Outcome {
    let (link, buffer) = (link.to_owned(), buffer.map(str::to_owned));
    let options = Options { link, buffer, seconds, ..Options::default() };
    options.trial(Contestant::named(name).expect("known"), None).expect("good").run()
}

/// Megabits per second of the flow, and the part of the time in which the receiver's window held data back.
fn rate_and_bound(outcome: &Outcome) -> (f64, f64) {
    (outcome.races[0].throughputs()[0] / 1e6, outcome.races[0].bounded())
}

#[test]
fn buffers_are_twice_what_line_and_queue_hold_and_bound_no_algorithm() {
    // 2.5 MB on the line and as much in the queue; a window of 1 MiB would carry 413 Mbit/s and 40.
    for (link, seconds, least) in [("1gbit,20ms,1bdp", 3.0, 850.0), ("100mbit,200ms,1bdp", 20.0, 80.0)] {
        for name in ["cubic", "ccp:cubic"] {
            let outcome = run(name, link, seconds, None);
            let (rate, bound) = rate_and_bound(&outcome);
            assert!(
                rate > least && bound < 0.1,
                "{name} over {link}: {rate} Mbit/s, bounded {bound} of the time"
            );
            assert!(outcome.text().contains("bounded by the receiver"), "{}", outcome.text());
        }
    }
}

#[test]
fn a_trial_says_that_its_buffers_decide() {
    let outcome = run("cubic", "1gbit,20ms,1bdp", 3.0, Some("1mib"));
    let (rate, bound) = rate_and_bound(&outcome);
    assert!(rate > 380.0 && rate < 420.0, "{rate} Mbit/s of 1 MiB for each 20 ms");
    assert!(bound > 0.9 && bound <= 1.0, "bounded {bound} of the time");
    let json = outcome.json();
    assert_eq!(json["races"][0]["buffer"], 1 << 20);
    assert_eq!(json["races"][0]["bounded"].as_f64(), Some(bound));
    let says =
        format!("bounded by the receiver {:.1} % of the time, with buffers of 1024 KiB", bound * 100.0);
    assert!(outcome.text().contains(&says) && outcome.page().expect("drawn").contains(&says), "{says}");
}

/// A receiver's window of 1 MiB leaves most of what the path has room for unused, and no algorithm takes that for room to grow: "CUBIC does not
/// increase its congestion window if a flow is application limited" (RFC 9438 section 5.8).
#[test]
fn no_window_grows_beyond_twice_the_receivers() {
    let largest = |name| {
        let outcome = run(name, "10gbit,20ms,1bdp", 2.0, Some("1mib"));
        let windows = outcome.races[0].flows[0].samples.iter().map(|sample| sample.cwnd);
        windows.max().expect("it was looked at")
    };
    for name in ["reno", "cubic", "dctcp", "ccp:reno", "ccp:cubic", "ccp:dctcp"] {
        let bytes = largest(name);
        assert!(bytes <= 2_200_000, "{name}: a window of {bytes} bytes of which 1 MiB can be used");
    }
    // An agent may add what one report acknowledges.
    for name in ["aimd", "vegas", "aggregate"] {
        let bytes = largest(name);
        assert!(bytes <= 3_300_000, "{name}: a window of {bytes} bytes of which 1 MiB can be used");
    }
}

#[test]
fn a_buffer_is_a_number_of_bytes_that_a_connection_can_have() {
    let options = |buffer: &str| Options { buffer: Some(buffer.to_owned()), ..Options::default() };
    assert_eq!(options("4kib").buffer(), Ok(Some(4096)));
    assert_eq!(options("256mib").buffer(), Ok(Some(256 << 20)));
    for text in ["", "4096", "4k", "4095b", "257mib", "1e3kb", "-1kib"] {
        let why = options(text).buffer().expect_err(text);
        assert!(why.contains("256mib"), "{why}");
    }
}

/// A learner that opens the window learns that the receiver's decides.
#[test]
fn an_environment_says_that_its_buffers_decide() {
    let of = |buffer| {
        let path = "1gbit,20ms,1bdp".parse().expect("good");
        let (interval, time) = (base::Duration::from_ms(20), base::Duration::from_secs(2));
        let staleness = base::Duration::from_us(20);
        let (mut env, mut seen) =
            Env::new(EnvSetting { path, rival: None, buffer, interval, time, staleness, seed: 1 });
        while !seen.is_over {
            seen = env.step(3_000_000, 0);
        }
        seen.bounded_us
    };
    let (small, large) = (of(Some(1 << 20)), of(None));
    assert!(small > 1_500_000 && large < 300_000, "{small} us with 1 MiB, {large} us by default");
}
