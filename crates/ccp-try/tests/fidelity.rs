//! Algorithms of crate `ccp-algorithms` beside the laws that are built in, over the same links with the same seeds; and the same trial twice.

use ccp_try::{Contestant, Options, Outcome, Race};

const SEEDS: u64 = 20;
/// A full queue decides about the first, chance about the others.
const LINKS: [&str; 3] = ["12mbit,20ms,1bdp", "24mbit,40ms,1bdp,loss=0.1%", "24mbit,20ms,1bdp,loss=0.5%"];

fn run(name: &str, link: &str, seconds: f64, seed: u64) -> Race {
    let options = Options { link: link.to_owned(), seconds, seed, ..Options::default() };
    let contestant = Contestant::named(name).expect("known");
    let mut outcome = options.trial(contestant, None).expect("good").run();
    let race = outcome.races.pop().expect("one run");
    assert_eq!(race.failures().collect::<Vec<_>>(), Vec::<String>::new());
    race
}

/// The first, second and third quartile of the throughput of a flow over all seeds, Mbit/s.
fn quartiles(name: &str, link: &str, seconds: f64) -> [f64; 3] {
    let mut all: Vec<f64> =
        (1..=SEEDS).map(|seed| run(name, link, seconds, seed).throughputs()[0] / 1e6).collect();
    all.sort_by(f64::total_cmp);
    [5, 10, 15].map(|rank| (all[rank - 1] + all[rank]) / 2.0)
}

/// The largest difference between quartiles of a program and of the law that is built in, over the latter.
fn difference(name: &str, link: &str, seconds: f64) -> f64 {
    let (built_in, program) =
        (quartiles(name, link, seconds), quartiles(&format!("ccp:{name}"), link, seconds));
    eprintln!("{name} over {link}: built in {built_in:.3?}, program {program:.3?}");
    built_in.iter().zip(program).map(|(own, other)| (other / own - 1.0).abs()).fold(0.0, f64::max)
}

/// The bar of the CCP paper's figure 10: quartiles of throughput within 5 %.
#[test]
fn reno_as_a_program_gets_what_the_built_in_one_gets() {
    for link in LINKS {
        let difference = difference("reno", link, 10.0);
        assert!(difference < 0.05, "{difference} over {link}");
    }
}

#[test]
fn cubic_as_a_program_gets_what_the_built_in_one_gets() {
    for link in LINKS {
        let difference = difference("cubic", link, 10.0);
        assert!(difference < 0.05, "{difference} over {link}");
    }
}

/// CCP paper, section 6.2: on a link of 12 Mbit/s with 25 ms Copa got 8.2 Mbit/s at a mean queueing delay of 11 ms.
#[test]
fn copa_at_12_mbit_and_25_ms() {
    let race = run("copa", "12mbit,25ms,4bdp", 30.0, 1);
    let rate = race.throughputs()[0] / 1e6;
    // A full packet takes 1.01 ms.
    let queue_ms = race.queue_figures().mean * 1.01;
    assert!(rate > 8.2 && queue_ms < 15.0, "{rate} Mbit/s, {queue_ms} ms");
    assert_eq!(race.flows[0].timeouts, 0);
}

fn against(seed: u64) -> Outcome {
    let link = "24mbit,20ms,1bdp,loss=0.1%".to_owned();
    let options = Options { link, seconds: 2.0, flows: 2, seed, ..Options::default() };
    let of = |name| Contestant::named(name).expect("known");
    options.trial(of("ccp:reno"), Some(of("cubic"))).expect("good").run()
}

#[test]
fn a_seed_is_one_page_and_another_seed_is_another() {
    let pages = [1, 1, 2].map(|seed| {
        let outcome = against(seed);
        (outcome.page().expect("drawn"), outcome.text(), outcome.json().to_string())
    });
    assert_eq!(pages[0], pages[1]);
    assert_ne!(pages[0].1, pages[2].1);
}

#[test]
fn with_a_rival_there_are_three_runs_of_all_flows() {
    let outcome = against(1);
    let counts: Vec<usize> = outcome.races.iter().map(|race| race.flows.len()).collect();
    assert_eq!(counts, [2, 2, 4]);
    let titles: Vec<String> = outcome.races.iter().map(Race::title).collect();
    assert_eq!(titles, ["ccp:reno alone", "cubic alone", "ccp:reno against cubic"]);
    for race in &outcome.races {
        let sum: f64 = race.throughputs().iter().sum();
        assert!(sum > 15e6 && sum < 24e6, "{sum} bit/s over 24 Mbit/s");
    }
}
