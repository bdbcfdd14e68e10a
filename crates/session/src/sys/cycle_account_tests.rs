use super::*;
use cycles::Ticks;
use shm::{Kind, Params};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The switch belongs to the process: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

fn region() -> (MutexGuard<'static, ()>, Arc<Region>) {
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 1 << 20 };
    let region = Arc::new(Region::create(params).unwrap().0);
    follow(&region);
    (one, region)
}

fn turn_switch(region: &Region, switch: Switch) {
    region.header().cycles.store(switch.word(), Relaxed);
}

fn on(generation: u16) -> Switch {
    Switch::on(generation, 1, Ticks::here())
}

fn ticks(account: &ThreadAccount, section: Section) -> u64 {
    account.spent[section as usize][0].load(Relaxed)
}

fn times(account: &ThreadAccount, section: Section) -> u64 {
    account.spent[section as usize][1].load(Relaxed)
}

fn work(cycles: u64) {
    let start = Ticks::here().now();
    while Ticks::here().now() - start < cycles {}
}

#[test]
fn off_nothing_is_taken_and_nothing_counted() {
    let (_one, region) = region();
    drop(enter(Section::Send));
    assert_eq!(region.header().accounts_taken.load(Relaxed), 0);
    assert!((0..ACCOUNTS as u32).all(|i| ticks(region.account(i).unwrap(), Section::Application) == 0));
}

#[test]
fn sections_partition_the_time_of_a_thread_and_nest() {
    let (_one, region) = region();
    turn_switch(&region, on(1));
    let now = || Ticks::here().now();
    let before_all = now();
    drop(enter(Section::Send));
    let start = now();
    for _ in 0..100 {
        let _waiting = enter(Section::Wait);
        work(2_000);
        let asleep = enter(Section::Asleep);
        work(10_000);
        drop(asleep);
        work(2_000);
        let before = turn(Section::Kernel);
        work(1_000);
        leave(before);
    }
    let least = now() - start;
    drop(enter(Section::Send));
    let most = now() - before_all;
    assert_eq!(region.header().accounts_taken.load(Relaxed), 0b11);
    let account = region.account(1).unwrap();
    let sum: u64 = Section::ALL.iter().map(|section| ticks(account, *section)).sum();
    assert!((least..=most).contains(&sum), "{sum} of {least} to {most}");
    let at_least = [(Section::Wait, 400_000), (Section::Asleep, 1_000_000), (Section::Kernel, 100_000)];
    assert!(at_least.iter().all(|(section, least)| ticks(account, *section) >= *least));
    let counted = [Section::Wait, Section::Asleep, Section::Kernel, Section::Send, Section::Application];
    assert_eq!(counted.map(|section| times(account, section)), [100, 100, 100, 2, 0]);
    assert_eq!(account.section.load(Relaxed), Section::Application as u32);
}

#[test]
fn a_new_generation_begins_at_nothing_and_a_window_that_ends_counts_no_more() {
    let (_one, region) = region();
    turn_switch(&region, on(1));
    let now = || Ticks::here().now();
    let start = now();
    drop(enter(Section::Receive));
    let held = enter(Section::Receive);
    turn_switch(&region, Switch::OFF);
    let most = now() - start;
    work(10_000_000);
    drop(held);
    let account = region.account(1).unwrap();
    assert!(ticks(account, Section::Receive) <= most && times(account, Section::Receive) == 2);
    let start = now();
    turn_switch(&region, Switch::on(1, 2, Ticks::here()));
    drop(enter(Section::Receive));
    let sum: u64 = Section::ALL.iter().map(|section| ticks(account, *section)).sum();
    let most = most + now() - start;
    assert!(sum <= most, "what lies between two windows belongs to none: {sum} of {most}");
    assert_eq!(times(account, Section::Receive), 3);
    turn_switch(&region, on(2));
    drop(enter(Section::Send));
    assert_eq!([Section::Receive, Section::Send].map(|section| times(account, section)), [0, 1]);
    assert_eq!(account.generation.load(Relaxed), 2);
}

#[test]
fn accounts_of_ended_threads_serve_others_and_what_they_counted_stays() {
    let (_one, region) = region();
    turn_switch(&region, on(1));
    for _ in 0..3 * ACCOUNTS {
        std::thread::spawn(|| drop(enter(Section::Send))).join().unwrap();
    }
    let sum: u64 = (0..ACCOUNTS as u32).map(|i| times(region.account(i).unwrap(), Section::Send)).sum();
    assert_eq!(sum, 3 * ACCOUNTS as u64);
}

#[test]
fn a_forked_child_leaves_its_parents_account_alone() {
    let (_one, region) = region();
    turn_switch(&region, on(1));
    drop(enter(Section::Send));
    child();
    drop(enter(Section::Send));
    let account = region.account(1).unwrap();
    assert_eq!(times(account, Section::Send), 1);
    let own = Params { kind: Kind::Application, id: 2, slots: 64, data_len: 1 << 20 };
    let own = Arc::new(Region::create(own).unwrap().0);
    follow(&own);
    turn_switch(&own, on(1));
    drop(enter(Section::Send));
    assert_eq!([&region, &own].map(|r| times(r.account(1).unwrap(), Section::Send)), [1, 1]);
}
