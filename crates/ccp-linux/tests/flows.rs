//! Flows of the kernel in two namespaces over a pair of interfaces: agents give them programs, algorithms change under them, agents and the
//! user-space half die. The test starts itself again inside the namespaces (`ip netns exec`), once for each part. Skipped without root, or
//! where programs cannot be loaded.

mod agent;
mod roles;
mod stage;

use agent::Agent;
use stage::Stage;

/// Bytes of one transfer.
const BYTES: u64 = 64 << 20;
/// Number of flows that swap their algorithms.
const SWAPPING: u32 = 10;

#[test]
fn part() {
    roles::play();
}

#[test]
fn an_agents_program_drives_flows_and_every_byte_is_right() {
    let Some(stage) = Stage::set("drive") else { return };
    let agent = Agent::start(&stage.agent_path());
    let mut bridge = stage.bridge(&["all"]);
    let sink = stage.sink(BYTES);
    let source = stage.source(BYTES);
    source.finish();
    assert_eq!(sink.finish().trim(), "right");
    let seen = agent.stop();
    assert!(seen.creates >= 1 && seen.reports > 0, "{seen:?}");
    let status = bridge.status();
    assert!(status.reports > 0 && status.refused_programs == 0, "{status:?}");
    bridge.down();
    assert!(!stage.has_algorithm(), "`down` leaves no algorithm behind");
}

#[test]
fn a_second_one_under_the_same_name_is_refused_and_the_first_goes_on() {
    if let Err(why) = ccp_linux::support() {
        return eprintln!("skipped: {why}");
    }
    let name = format!("twice{}", std::process::id());
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [first, second] = folders.each_ref().map(|folder| roles::setup(&name, folder.path(), ""));
    let first = ccp_linux::Bridge::up(&first).expect("the name is free");
    let why = ccp_linux::Bridge::up(&second).expect_err("the name is taken").to_string();
    assert!(why.contains(&format!("a congestion control `{name}` already")), "{why}");
    assert_eq!(first.status().expect("readable").flows.len(), 0);
    first.down().expect("no flow has it");
}

/// Ten flows, each with a seed of its own that says when it swaps, 100 ms later on average, and to what.
#[test]
fn flows_swap_between_three_algorithms_and_no_byte_is_wrong() {
    let Some(stage) = Stage::set("swap") else { return };
    let agent = Agent::start(&stage.agent_path());
    let mut bridge = stage.bridge(&[]);
    let sink = stage.sink_of(SWAPPING);
    let source = stage.swapping_source(SWAPPING, &format!("reno,{},cubic", stage.name()));
    let told = source.finish();
    let (swaps, timeouts) = told.trim().split_once(' ').expect("two numbers");
    let (swaps, timeouts): (u32, u32) =
        (swaps.parse().expect("the number of swaps"), timeouts.parse().expect("of timeouts"));
    assert!(swaps >= 20 * SWAPPING, "{swaps} swaps");
    assert_eq!(sink.finish().trim(), "right");
    // Nothing is lost here but in queues: a flow that stands still longer than one timeout shows several.
    assert!(timeouts <= SWAPPING, "{timeouts} timeouts of {SWAPPING} flows");
    let seen = agent.stop();
    assert!(
        seen.creates >= swaps / 6,
        "each time it comes, the flow is a new one: {seen:?} of {swaps} swaps"
    );
    assert!(bridge.status().flows.is_empty(), "all flows have left");
    bridge.down();
}

#[test]
fn the_death_of_an_agent_and_of_the_bridge_leave_flows_on_the_kernels_algorithm() {
    let Some(stage) = Stage::set("death") else { return };
    let agent = Agent::start(&stage.agent_path());
    let sink = stage.sink(0);
    let mut source = stage.long_source();
    let former = source.algorithm();
    let mut bridge = stage.bridge(&["all"]);
    bridge.until("a program runs", |status| status.flows.iter().any(|flow| flow.runs > 0));
    let seen = agent.stop();
    assert!(seen.creates == 1, "{seen:?}");
    bridge.until("the flow fell back", |status| {
        status.fallbacks > 0 && status.flows.iter().all(|flow| flow.standing.starts_with("default"))
    });
    bridge.kill();
    // The kernel's programs see by themselves that no one lives: the flow goes back to its former algorithm, and the last flow takes the
    // algorithm with it.
    source.until_algorithm(&former);
    source.stop();
    assert_eq!(sink.finish().trim(), "right");
    let again = stage.bridge(&[]);
    again.down();
    assert!(!stage.has_algorithm());
}
