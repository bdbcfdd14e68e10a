use crate::{Amount, Burst, Cause, Flap, LinkConfig, Loss, Outage, PacketRange, Probability, Reorder, Trace};
use base::{Duration, Instant};
use proptest::prelude::*;

fn error(text: &str) -> String {
    text.parse::<LinkConfig>().expect_err("a bad text").to_string()
}

#[test]
fn every_key_is_read() {
    let text = "rate=2.5gbit,delay=1ms,jitter=50us,queue=100p/150kb,ecn=65p,loss=1%,reorder=5%/1ms,duplicate=0.1%,\
                corrupt=0.0000001%,truncate=100%,mtu=1400,down=2s-3s+7s-8s,flap=9s/1s";
    let at = |s| Instant::ZERO.plus(Duration::from_secs(s));
    let expected = LinkConfig {
        rate_bits_per_second: Some(2_500_000_000),
        trace: None,
        delay: Duration::from_ms(1),
        jitter: Duration::from_us(50),
        queue_packets: Some(100),
        queue_bytes: Some(150_000),
        ecn_threshold: Some(Amount::Packets(65)),
        loss: Loss::Random(Probability::percent(1)),
        reorder: Reorder { probability: Probability::percent(5), extra: Duration::from_ms(1) },
        duplicate: Probability::per_million(1_000),
        corrupt: Probability::per_billion(1),
        truncate: Probability::ALWAYS,
        mtu: Some(1400),
        outages: vec![Outage { from: at(2), to: at(3) }, Outage { from: at(7), to: at(8) }],
        flap: Some(Flap { up: Duration::from_secs(9), down: Duration::from_secs(1) }),
    };
    assert_eq!(text.parse(), Ok(expected));
}

#[test]
fn defaults_are_filled_in_and_shown() {
    let show = |text: &str| text.parse::<LinkConfig>().map(|config| config.to_string()).unwrap();
    assert_eq!(show(""), "perfect");
    assert_eq!(show("perfect"), "perfect");
    assert_eq!(show(" delay=0.5ms "), "delay=500us");
    assert_eq!(show("rate=10gbit"), "rate=10gbit,queue=1000p");
    assert_eq!(show("rate=1gbit,queue=none"), "rate=1gbit,queue=none");
    assert_eq!(show("loss=burst:0.1%/30%"), "loss=burst:0.1%/30%/100%/0%");
    assert_eq!(show("loss=list:1+7-9"), "loss=list:1+7-9");
    assert_eq!(show("rate=8bit,queue=1mib,ecn=1kib"), "rate=8bit,queue=1048576b,ecn=1024b");
}

#[test]
fn what_never_happens_is_no_property() {
    let link: LinkConfig = "delay=5ms,reorder=0%/2ms,duplicate=0%".parse().expect("a link");
    assert_eq!(link, LinkConfig::delayed(Duration::from_ms(5)));
    assert_eq!(link.to_string().parse(), Ok(link));
}

#[test]
fn traces_come_from_the_loader() {
    let load = |name: &str| {
        if name == "lte" { Ok("1\n2\n".to_owned()) } else { Err("there is no such file".to_owned()) }
    };
    let config = LinkConfig::parse("trace=lte,delay=5ms", load).unwrap();
    assert_eq!(config.trace, Some(Trace::parse("lte", "1\n2\n").unwrap()));
    assert_eq!(config.to_string(), "trace=lte,delay=5ms,queue=1000p");
    assert_eq!(LinkConfig::parse(&config.to_string(), load), Ok(config));
    assert!(LinkConfig::parse("trace=umts", load).unwrap_err().to_string().contains("no such file"));
    assert!(error("trace=lte").contains("towpath link"));
}

#[test]
fn errors_name_the_key_and_say_what_to_do() {
    for (text, key, hint) in [
        ("speed=1gbit", "speed", "there are: rate"),
        ("rate=10", "rate", "with a unit"),
        ("rate=0bit", "rate", "more than 0"),
        ("rate=1.0000000001gbit", "rate", "with a unit"),
        ("delay=5", "delay", "as in 1.5ms"),
        ("delay=-5ms", "delay", "as in 1.5ms"),
        ("delay=1ms,delay=2ms", "delay", "twice"),
        ("jitter=99999999999s", "jitter", "as in 1.5ms"),
        ("queue=100p", "queue", "needs a rate="),
        ("rate=1gbit,queue=100p/1p", "queue", "100p/150kb"),
        ("rate=1gbit,queue=0p", "queue", "at least one"),
        ("ecn=5p", "ecn", "needs a rate="),
        ("loss=1", "loss", "in percent"),
        ("loss=101%", "loss", "in percent"),
        ("loss=0.00000001%", "loss", "in percent"),
        ("loss=burst:1%", "loss", "burst:0.1%/30%"),
        ("loss=burst:1%/1%/1%/1%/1%", "loss", "burst:0.1%/30%"),
        ("loss=list:0", "loss", "from 1 on"),
        ("loss=list:5-3", "loss", "ascending"),
        ("loss=list:3+3", "loss", "ascending"),
        ("reorder=5%", "reorder", "5%/1ms"),
        ("reorder=5%/0", "reorder", "5%/1ms"),
        ("mtu=67", "mtu", "68"),
        ("down=3s-2s", "down", "ascending"),
        ("down=1s-3s+2s-4s", "down", "apart"),
        ("flap=1s", "flap", "9s/1s"),
        ("flap=0/1s", "flap", "more than 0"),
        ("loss", "loss", "in percent"),
    ] {
        let message = error(text);
        assert!(
            message.starts_with(&format!("link: {key}: ")) && message.contains(hint),
            "{text}: {message}"
        );
    }
    assert_eq!(Cause::ALL.map(Cause::name), ["loss", "queue", "mtu", "down"]);
}

fn configs() -> impl Strategy<Value = LinkConfig> {
    let often = || (0..=1_000_000_000u32).prop_map(Probability::per_billion);
    let long = || (0..100_000_000_000u64).prop_map(Duration::from_ns);
    let loss = prop_oneof![
        Just(Loss::None),
        (1..=1_000_000_000u32).prop_map(|p| Loss::Random(Probability::per_billion(p))),
        (often(), often(), often(), often()).prop_map(|(enter, leave, loss_bad, loss_good)| Loss::Burst(
            Burst { enter, leave, loss_bad, loss_good }
        )),
        proptest::collection::btree_set(1..1_000_000u64, 1..9).prop_map(|numbers| Loss::List(
            numbers.into_iter().map(|n| PacketRange { first: n * 3, last: n * 3 + n % 3 }).collect()
        )),
    ];
    let rate = proptest::option::of(1..=1_000_000_000_000u64);
    let queue = (proptest::option::of(1..u32::MAX), proptest::option::of(1..u64::from(u32::MAX)));
    let time = (long(), long(), long(), proptest::option::of((1..99_999u64, 1..99_999u64)));
    (rate, queue, time, loss, (often(), often(), often(), often()), proptest::option::of(68..70_000u32))
        .prop_map(
            |(rate, queue, (delay, jitter, extra, flap), loss, (p, duplicate, corrupt, truncate), mtu)| {
                LinkConfig {
                    rate_bits_per_second: rate,
                    trace: None,
                    delay,
                    jitter,
                    queue_packets: rate.and(queue.0),
                    queue_bytes: rate.and(queue.1),
                    ecn_threshold: rate.and(queue.1).map(Amount::Bytes),
                    loss,
                    reorder: if p.is_never() {
                        Reorder::default()
                    } else {
                        Reorder { probability: p, extra: extra.plus(Duration::from_ns(1)) }
                    },
                    duplicate,
                    corrupt,
                    truncate,
                    mtu,
                    outages: Vec::new(),
                    flap: flap
                        .map(|(up, down)| Flap { up: Duration::from_us(up), down: Duration::from_us(down) }),
                }
            },
        )
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(config in configs()) {
        let text = config.to_string();
        prop_assert_eq!(text.parse::<LinkConfig>(), Ok(config), "{}", text);
    }

    #[test]
    fn no_text_panics(text in "[a-z0-9=,.%/+:-]{0,60}", key in "(rate|queue|loss|down|flap|reorder|ecn)=(list:|burst:)?") {
        let _ = text.parse::<LinkConfig>();
        let _ = format!("{key}{text}").parse::<LinkConfig>();
    }
}
