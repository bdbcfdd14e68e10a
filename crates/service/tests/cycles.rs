//! Counting cycles in a running service, and what it makes of what applications say.

use crate::common::{App, Daemon};
use control::{Counting, Report};
use cycles::{Section, Switch, Ticks};
use service::Options;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

fn cycles(daemon: &Daemon, wish: Counting) -> serde_json::Value {
    daemon.report(Report::Cycles(wish))
}

/// All that is told of the modules of one thread or process.
fn sum(of: &serde_json::Value) -> u64 {
    of["modules"].as_array().unwrap().iter().map(|module| module["cycles"].as_u64().unwrap()).sum()
}

fn word(app: &App) -> Switch {
    Switch::from_word(app.region.header().cycles.load(Relaxed))
}

#[test]
fn the_time_of_each_thread_of_the_service_is_told_whole() {
    let daemon = Daemon::start(Options::default());
    assert_eq!(cycles(&daemon, Counting::AsItIs)["counting"], "off");
    let ticks = Ticks::here();
    let before = ticks.now();
    cycles(&daemon, Counting::Always);
    // A core that was asleep when it was turned on begins when it wakes for the first question.
    cycles(&daemon, Counting::AsItIs);
    let (first, start) = (ticks.now(), Instant::now());
    while start.elapsed() < Duration::from_millis(100) {
        cycles(&daemon, Counting::AsItIs);
    }
    // It is counted all this time, and no longer than from the first question to the last answer, however busy the machine is.
    let least = ticks.now() - first;
    let told = cycles(&daemon, Counting::Off);
    let most = ticks.now() - before;
    let counted = told["counted"].as_u64().unwrap();
    let whole = least - least / 100..=most;
    assert!(whole.contains(&counted), "{counted} of {least} to {most}: {told}");
    let threads = told["service"].as_array().unwrap();
    assert_eq!([&threads[0]["thread"], &threads[1]["thread"]], ["core 0", "control"]);
    for thread in threads {
        let sum = sum(thread);
        assert!(whole.contains(&sum), "{sum} of {least} to {most}: {told}");
    }
    let per_ns = told["ticks_per_second"].as_f64().unwrap() / 1e9;
    assert!((0.1..10.0).contains(&per_ns), "{told}");
    assert_eq!(cycles(&daemon, Counting::AsItIs)["service"], serde_json::json!([]));
}

#[test]
fn applications_see_the_switch_and_what_they_say_is_shown_as_theirs() {
    let daemon = Daemon::start(Options::default());
    let early = App::new(&daemon);
    assert!(!word(&early).is_on());
    cycles(&daemon, Counting::Always);
    let late = App::new(&daemon);
    assert!(word(&early).is_on() && word(&early) == word(&late));
    // Of pages that it has never touched nothing is read.
    early.region.header().accounts_taken.store(1 << 3 | 1 << 60, Relaxed);
    assert_eq!(
        cycles(&daemon, Counting::AsItIs)["applications"],
        serde_json::json!([]),
        "nobody says anything"
    );
    let account = early.region.account(3).unwrap();
    account.at.store(Ticks::here().now(), Relaxed);
    account.section.store(Section::Wait as u32, Relaxed);
    account.spent[Section::Send as usize][0].store(1000, Relaxed);
    account.spent[Section::Send as usize][1].store(10, Relaxed);
    account.generation.store(word(&early).generation(), Relaxed);
    let told = cycles(&daemon, Counting::Off);
    let process = &told["applications"][0];
    assert_eq!((&process["said_by"], &process["threads"]), (&"application".into(), &1.into()));
    let modules = process["modules"].as_array().unwrap();
    let send = modules.iter().find(|module| module["module"] == "send").unwrap();
    assert_eq!((&send["cycles"], &send["times"], &send["each"]), (&1000.into(), &10.into(), &100.0.into()));
    assert!(modules.iter().any(|module| module["module"] == "wait"), "what it does now is added: {told}");
    assert!(!word(&early).is_on() && !word(&late).is_on());
}

#[test]
fn what_an_application_invents_is_bounded_by_what_can_be() {
    let daemon = Daemon::start(Options::default());
    let app = App::new(&daemon);
    cycles(&daemon, Counting::Always);
    app.region.header().accounts_taken.store(u64::MAX, Relaxed);
    for i in 0..shm::ACCOUNTS as u32 {
        let account = app.region.account(i).unwrap();
        account.spent.iter().flatten().for_each(|word| word.store(u64::MAX - u64::from(i), Relaxed));
        account.section.store(u32::MAX - i, Relaxed);
        account.at.store(u64::from(i), Relaxed);
        account.generation.store(word(&app).generation(), Relaxed);
    }
    let told = cycles(&daemon, Counting::AsItIs);
    let process = &told["applications"][0];
    let counted = cycles(&daemon, Counting::Off)["counted"].as_u64().unwrap();
    let most = counted * (shm::ACCOUNTS * shm::SECTIONS) as u64;
    assert!(sum(process) <= most, "{told}");
    assert_eq!(process["modules"].as_array().unwrap().len(), shm::SECTIONS);
}

#[test]
fn sampling_turns_itself_on_and_off() {
    let daemon = Daemon::start(Options::default());
    let app = App::new(&daemon);
    cycles(&daemon, Counting::Sampled);
    // The word when it says so; a window may be over before this thread runs again.
    let until = |what: bool| {
        let end = Instant::now() + crate::common::PATIENCE;
        loop {
            let seen = word(&app);
            if seen.is_on() == what {
                return seen;
            }
            assert!(Instant::now() < end, "it is never {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let generation = until(true).generation();
    until(false);
    assert_eq!(until(true).generation(), generation);
    cycles(&daemon, Counting::Off);
    assert!(!word(&app).is_on());
}
