//! Transcripts of simulated flows, replayed: the same algorithm decides the same, another one does not.

use ccp_try::transcript::{Said, Way, read, written};
use ccp_try::{Contestant, Options, replay};

/// What two flows of an algorithm and their agent say to each other in three seconds.
fn transcript(name: &str) -> Vec<Said> {
    let link = "12mbit,20ms,1bdp".to_owned();
    let options = Options { link, flows: 2, seconds: 3.0, ..Options::default() };
    let mut trial = options.trial(named(name), None).expect("good");
    trial.keeps_datagrams = true;
    trial.run().races.remove(0).transcript
}

fn named(name: &str) -> Contestant {
    Contestant::named(name).expect("known")
}

#[test]
fn the_same_algorithm_decides_the_same() {
    for name in ["ccp:cubic", "aimd", "copa", "ccp:bbr", "aggregate"] {
        let text = written(&transcript(name));
        let all = read(&text).expect("just written");
        let replayed = replay(&all, None, &named(name)).expect("one agent");
        assert_eq!((replayed.flows, replayed.left_out, &replayed.difference), (2, 0, &None), "{name}");
        assert!(replayed.reports > 0 && replayed.same > 2, "{name}: {replayed:?}");
        assert_eq!(replayed.failures, Vec::<String>::new());
    }
}

#[test]
fn the_first_other_decision_is_named() {
    let mut all = transcript("aimd");
    let replayed = replay(&all, None, &named("vegas")).expect("one agent");
    let difference = replayed.difference.expect("Vegas is no AIMD");
    assert!(difference.recorded != difference.now, "{difference:?}");

    // One bit of one report, in the middle: its flow's decision differs from there on, and those before it do not. A report is header, program
    // and number of values, then what was acknowledged and what was lost.
    let at = all.len() / 2;
    let is_calm = |said: &&mut Said| {
        let bytes = said.bytes().expect("good");
        said.way == Way::ToAgent && bytes.get(24..32) == Some(&[0; 8])
    };
    let said = all[at..].iter_mut().find(is_calm).expect("reports without a loss");
    let mut bytes = said.bytes().expect("good");
    bytes[17] ^= 0x10;
    *said = Said::new(said.ns, said.way, &said.agent, &bytes);
    let begun = all[0].ns;
    let changed_us = (all[at].ns - begun) / 1000;
    let difference = replay(&all, None, &named("aimd")).expect("one agent").difference.expect("one report");
    assert!(difference.us >= changed_us && difference.us < changed_us + 200_000, "{difference:?}");
}

#[test]
fn flows_without_a_beginning_are_left_out() {
    let all = transcript("aimd");
    let late = &all[all.len() / 2..];
    let replayed = replay(late, None, &named("aimd")).expect("one agent");
    assert_eq!((replayed.flows, replayed.left_out, replayed.same), (0, 2, 0));
    assert_eq!(replayed.difference, None);
}

/// A recording that begins behind the agent has its programs first, as the service holds them: the flow that begins later is replayed.
#[test]
fn a_flow_that_begins_after_a_late_recording_is_replayed() {
    let all = transcript("ccp:cubic");
    let creates = |said: &Said| said.way == Way::ToAgent && said.bytes().expect("good").starts_with(&[0, 0]);
    let second = all.iter().enumerate().filter(|(_, said)| creates(said)).nth(1).expect("two flows").0;
    let late = &all[second..];
    let begin = late[0].ns;
    // INSTALL is message 2.
    let is_install =
        |said: &&Said| said.way == Way::FromAgent && said.bytes().expect("good").starts_with(&[2, 0]);
    let held = all[..second].iter().filter(is_install).map(|said| Said { ns: begin, ..said.clone() });
    let with: Vec<Said> = held.chain(late.iter().cloned()).collect();
    assert!(with.len() > late.len(), "the agent has installed its programs before");
    let replayed = replay(&with, None, &named("ccp:cubic")).expect("one agent");
    assert_eq!((replayed.flows, replayed.left_out, &replayed.difference), (1, 1, &None));
    assert!(replayed.same > 1, "{replayed:?}");
    let without = replay(late, None, &named("ccp:cubic")).expect("one agent");
    assert!(without.difference.is_some(), "without its program nothing can be compared");
}

#[test]
fn what_is_no_transcript_of_one_agent_is_refused() {
    let said = |agent| Said::new(0, Way::ToAgent, agent, &[]);
    for (all, says) in [(vec![], "empty"), (vec![said("a"), said("b")], "a, b")] {
        let why = replay(&all, None, &named("aimd")).expect_err(says);
        assert!(why.contains(says), "{why}");
    }
    let why = replay(&[said("a")], None, &named("cubic")).expect_err("built in");
    assert!(why.contains("built into the datapath"), "{why}");
    let back = [Said { ns: 5, ..said("a") }, said("a")];
    assert!(replay(&back, None, &named("aimd")).is_err());
    let far = [said("a"), Said { ns: u64::MAX, ..said("a") }];
    assert!(replay(&far, None, &named("aimd")).expect_err("centuries").contains("more than a day"));
    let torn = [Said::new(0, Way::ToAgent, "a", &[1, 0])];
    assert!(replay(&torn, None, &named("aimd")).is_err());
}
