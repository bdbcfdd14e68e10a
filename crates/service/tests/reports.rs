//! Reports: what a user that asks for many and reads none can have of the service.

use crate::common::{App, Daemon, PATIENCE, listener};
use control::{Line, Reply, Report, Request, ToApplication, ToService};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::io::ioctl_fionread;
use rustix::time::Timespec;
use service::Options;
use std::time::Instant;

/// Reports of one user that are made, or unread, at once.
const PLACES: usize = 4;

fn ask(line: &Line, number: u32, report: Report) {
    line.send(&ToService { number, request: Request::Report(report) }, &[], true).unwrap();
}

fn answer(line: &Line) -> u32 {
    let got = line.receive::<ToApplication>(true).unwrap();
    match got.message {
        ToApplication::Reply(number, Reply::Text) if got.fds.len() == 1 => number,
        other => panic!("no report: {other:?}"),
    }
}

fn wait_for(line: &Line) {
    poll(
        &mut [PollFd::new(line, PollFlags::IN)],
        Some(&Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 }),
    )
    .unwrap();
}

#[test]
fn a_line_has_one_unread_report_at_most_and_gets_all_in_order() {
    let daemon = Daemon::start(Options::default());
    let kinds = [Report::Sockets, Report::Explain, Report::Statistics, Report::Channels, Report::Sockets];
    let line = daemon.dial();
    for (kind, number) in kinds.iter().zip(1..) {
        ask(&line, number, kind.clone());
    }
    wait_for(&line);
    let one = ioctl_fionread(line.as_fd()).unwrap();
    // Lines of a user take turns, so whatever that line could have would be there after these.
    (0..100).for_each(|_| drop(daemon.report(Report::Statistics)));
    assert_eq!(ioctl_fionread(line.as_fd()).unwrap(), one, "a second answer lies unread");
    assert_eq!((1..=5).map(|_| answer(&line)).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

#[test]
fn an_answer_that_follows_a_report_waits_until_that_is_read() {
    let daemon = Daemon::start(Options::default());
    let line = daemon.dial();
    ask(&line, 1, Report::Sockets);
    line.send(&ToService { number: 2, request: crate::common::hello(None) }, &[], true).unwrap();
    wait_for(&line);
    let statistics = (0..100).map(|_| daemon.report(Report::Statistics)).next_back().unwrap();
    assert_eq!(statistics["applications"], 0, "the hello is not heard before the report is read");
    assert_eq!(answer(&line), 1);
    let welcome = line.receive::<ToApplication>(true).unwrap().message;
    assert!(matches!(welcome, ToApplication::Reply(2, Reply::Welcome(_))), "{welcome:?}");
}

/// The lines with an answer to be read, and how many of them are open, all at one moment.
fn answered(lines: &[Line]) -> (Vec<usize>, usize) {
    let mut looks: Vec<_> =
        lines.iter().map(|line| PollFd::new(line, PollFlags::IN | PollFlags::RDHUP)).collect();
    poll(&mut looks, Some(&Timespec::default())).unwrap();
    let with = |wanted: PollFlags, but: PollFlags| {
        let looks = looks.iter().enumerate();
        looks.filter(move |(_, look)| look.revents().contains(wanted) && !look.revents().intersects(but))
    };
    let all = with(PollFlags::IN, PollFlags::empty()).map(|(i, _)| i).collect();
    (all, with(PollFlags::IN, PollFlags::HUP | PollFlags::RDHUP).count())
}

#[test]
fn lines_of_one_user_that_read_nothing_have_few_reports_and_all_that_read_get_theirs() {
    let daemon = Daemon::start(Options::default());
    let mut lines: Vec<Line> = (0..32).map(|_| daemon.dial()).collect();
    for line in &lines {
        ask(line, 7, Report::Explain);
    }
    let (end, mut most) = (Instant::now() + PATIENCE, 0);
    while !lines.is_empty() {
        assert!(Instant::now() < end, "{} lines have no report", lines.len());
        let (ready, open) = answered(&lines);
        most = most.max(open);
        if let Some(first) = ready.first() {
            assert_eq!(answer(&lines.remove(*first)), 7);
        }
    }
    assert!((1..=PLACES).contains(&most), "{most} unread reports at once");
}

#[test]
fn processes_connect_while_a_user_asks_for_reports_and_reads_none() {
    let daemon = Daemon::start(Options::default());
    let mut server = App::new(&daemon);
    let (socket, address) = listener();
    let queue = server.listen(&socket, 128);
    let mut client = App::new(&daemon);
    let lines: Vec<Line> = (0..32).map(|_| daemon.dial()).collect();
    for round in 0..20 {
        for line in &lines {
            let said = ToService { number: round + 1, request: Request::Report(Report::Explain) };
            // Full, or closed because it reads nothing.
            let _ = line.send(&said, &[], false);
        }
        let mut there = client.connect(address);
        let (mut here, _) = server.accept_wait(queue);
        client.send(&mut there, b"goes on");
        assert_eq!(server.receive_exact(&mut here, 7), b"goes on");
    }
}

/// Asks, and keeps the descriptor of the report.
fn ask_and_keep(line: &Line, number: u32) -> std::fs::File {
    ask(line, number, Report::Statistics);
    let got = line.receive::<ToApplication>(true).unwrap();
    assert!(matches!(got.message, ToApplication::Reply(_, Reply::Text)), "{:?}", got.message);
    got.fds.into_iter().next().unwrap().into()
}

fn until_empty(report: &std::fs::File) {
    let end = Instant::now() + PATIENCE;
    while report.metadata().unwrap().len() > 0 {
        assert!(Instant::now() < end, "its reader keeps memory of the service's");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn the_memory_of_a_report_is_the_services_again_when_its_line_asks_anew_or_is_closed() {
    let daemon = Daemon::start(Options::default());
    let line = daemon.dial();
    let first = ask_and_keep(&line, 1);
    assert!(first.metadata().unwrap().len() > 0, "an open line that asks nothing keeps its report");
    let second = ask_and_keep(&line, 2);
    until_empty(&first);
    assert!(second.metadata().unwrap().len() > 0);
    drop(line);
    until_empty(&second);
}

#[test]
fn a_report_that_is_never_read_is_emptied_when_its_line_is_closed() {
    let daemon = Daemon::start(Options::default());
    let lines: Vec<Line> = (0..=PLACES).map(|_| daemon.dial()).collect();
    for line in &lines {
        ask(line, 1, Report::Sockets);
        wait_for(line);
    }
    // The last has one because another was closed, which has its answer still.
    let got = lines[0].receive::<ToApplication>(true).unwrap();
    let report: std::fs::File = got.fds.into_iter().next().unwrap().into();
    until_empty(&report);
    assert!(lines[0].receive::<ToApplication>(true).is_err(), "it is closed");
    assert_eq!(answer(&lines[PLACES]), 1);
}
