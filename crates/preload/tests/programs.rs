//! C programs that print what they see of sockets: on Towpath they must print what they print on the kernel, and must
//! really have been on Towpath.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "../../service/tests/common/thread.rs"]
mod thread;

use common::library;
use service::Options;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use thread::serve;

struct Place {
    folder: tempfile::TempDir,
    control: PathBuf,
}

/// A private service in a thread of this process; it lives as long as the test.
fn service() -> Place {
    service_with(Options::default())
}

fn service_with(options: Options) -> Place {
    let folder = tempfile::tempdir().unwrap();
    // The service makes the folder of its socket itself.
    let control = folder.path().join("service/control.sock");
    let options = Options { control: Some(control.clone()), ..options };
    let config = options.resolve().unwrap();
    serve(config);
    Place { folder, control }
}

impl Place {
    fn compile(&self, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
        let program = self.folder.path().join(name);
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
            .args([&program, &source])
            .status()
            .expect("a C compiler is installed by `make setup`");
        assert!(status.success());
        program
    }

    /// What the program prints.
    fn run(&self, program: &Path, on_towpath: bool) -> (String, String) {
        self.run_with(program, &[], on_towpath)
    }

    fn run_with(&self, program: &Path, arguments: &[&str], on_towpath: bool) -> (String, String) {
        let mut command = Command::new(program);
        command.args(arguments);
        if on_towpath {
            command.env("LD_PRELOAD", library()).env("TOWPATH_CONTROL", &self.control);
            command.env("TOWPATH_LOG", "debug");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while child.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (text(output.stdout), text(output.stderr))
    }
}

/// The numbers at the ends of the lines that a program has printed; `log` is for the message where a line has none.
fn numbers((printed, log): (String, String)) -> Vec<u32> {
    let number = |line: &str| line.rsplit(' ').next().and_then(|n| n.parse().ok());
    let numbers: Option<Vec<u32>> = printed.lines().map(number).collect();
    numbers.unwrap_or_else(|| panic!("{printed}{log}"))
}

/// `refused`: so many of its sockets are the kernel's, because they connect to a port where nobody listens, or as the test says.
fn prints_the_same(name: &str, refused: RangeInclusive<usize>) {
    prints_the_same_at(&service(), name, refused);
}

/// Returns the log of the run on Towpath.
fn prints_the_same_at(place: &Place, name: &str, refused: RangeInclusive<usize>) -> String {
    let program = place.compile(name);
    let (kernel, _) = place.run(&program, false);
    let (towpath, log) = place.run(&program, true);
    assert!(!kernel.is_empty() && !kernel.contains("FAILED"), "{kernel}");
    assert_eq!(towpath, kernel, "{name} on Towpath (left) and on the kernel; log:\n{log}");
    assert!(log.contains("registered as application"), "{name} was not on Towpath:\n{log}");
    let in_kernel = log.matches("in the kernel").count();
    assert!(refused.contains(&in_kernel), "{name} was partly on the kernel, {in_kernel} times:\n{log}");
    log
}

#[test]
fn ends_of_connections() {
    prints_the_same("ends", 1..=1);
}

/// The connect was good; the reset is the next call's to tell. And what `TCP_INFO` says before, between and after.
#[test]
fn connections_that_are_reset_as_soon_as_they_are_accepted() {
    prints_the_same("reset_at_once", 0..=0);
}

#[test]
fn readiness() {
    prints_the_same("events", 0..=0);
}

#[test]
fn blocked_calls_ask_for_no_memory() {
    prints_the_same("blocks", 0..=0);
}

#[test]
fn processes_and_descriptors() {
    prints_the_same("processes", 0..=0);
}

#[test]
fn connections_that_several_programs_have() {
    prints_the_same("passing", 0..=0);
}

/// More threads than a process has contexts: none looks for news while it has none, each is woken for its own.
#[test]
fn a_waiting_thread_for_each_of_many_connections() {
    prints_the_same("nappers", 0..=0);
}

#[test]
fn a_waiting_thread_for_each_connection_under_a_low_limit_of_descriptors() {
    let place = service();
    let program = place.compile("nappers");
    let run = |on_towpath| place.run_with(&program, &["1024"], on_towpath);
    let ((kernel, _), (towpath, log)) = (run(false), run(true));
    assert_eq!(towpath, kernel, "on Towpath (left) and on the kernel; log:\n{log}");
    assert!(kernel.ends_with("done\n") && !log.contains("in the kernel"), "{kernel}{log}");
}

#[test]
fn a_thousand_connections() {
    prints_the_same("crowd", 0..=0);
}

#[test]
fn short_connections() {
    prints_the_same("short", 0..=0);
}

#[test]
fn forks_in_the_middle_of_everything() {
    prints_the_same("forks", 0..=0);
}

#[test]
fn listeners_that_are_left_to_children() {
    prints_the_same("left", 0..=0);
}

#[test]
fn who_is_free_first_takes_the_next_connection() {
    prints_the_same("turns", 0..=0);
}

#[test]
fn memory_that_children_lend_comes_back() {
    let small = Options { region_mib: Some(4), ..Options::default() };
    prints_the_same_at(&service_with(small), "heirs", 0..=0);
}

#[test]
fn connections_that_shells_and_messages_take_along() {
    prints_the_same("handed_on", 0..=0);
}

#[test]
fn a_descriptor_that_a_vfork_child_gets_is_not_its_parents() {
    prints_the_same("vforked", 1..=1);
}

/// Most children execute another program: they pay for no registration.
#[test]
fn a_child_that_uses_no_socket_does_not_register() {
    let log = prints_the_same_at(&service(), "idle_children", 0..=0);
    assert_eq!(log.matches("registered as application").count(), 1, "{log}");
}

#[test]
fn a_fork_that_fails_leaves_nothing_behind() {
    prints_the_same("no_child", 0..=0);
}

/// A debugger stops each before it has said hello, and 64 are more than there are holder bits.
#[test]
fn children_that_do_not_run_for_long_keep_their_connections() {
    prints_the_same("stopped_children", 0..=0);
}

#[test]
fn a_connections_calls_make_no_system_call() {
    let place = service();
    let program = place.compile("calls");
    let on_kernel = place.run(&program, false);
    if on_kernel.0.starts_with("skipped") {
        return eprintln!("{}", on_kernel.0);
    }
    let kernel = numbers(on_kernel);
    assert!(kernel[0] == 0 && kernel[1..].iter().all(|n| *n >= 10), "{kernel:?}");
    let (printed, log) = place.run(&program, true);
    let towpath = numbers((printed.clone(), log));
    assert!(towpath.len() == kernel.len() && towpath.iter().all(|n| *n == 0), "{printed}");
}

/// Each has one of its own from the moment on in which anybody can tell.
#[test]
fn accepted_connections_share_a_socket_of_the_kernels() {
    let place = service();
    let program = place.compile("common_sockets");
    let counted = |on_towpath| numbers(place.run(&program, on_towpath));
    assert_eq!(counted(false), [6; 10]);
    //  accepted, non-blocking, option, fstat, dup, fork; accepted, vfork; posix_spawn; without a free number
    assert_eq!(counted(true), [1, 1, 2, 3, 4, 6, 1, 6, 2, 6]);
}

/// Their servers get what comes afterwards from the kernel.
#[test]
fn programs_that_lock_themselves_in() {
    prints_the_same("locked", 4..=4);
}

#[test]
fn notices_of_sends_without_copies() {
    prints_the_same("zerocopy", 0..=0);
}

/// A family has 63 holder bits, some of which are kept in reserve: from then on connections are the kernel's.
#[test]
fn a_server_with_a_child_for_each_of_100_connections() {
    prints_the_same("children", 50..=60);
}

/// Handlers that make, connect and close sockets, and fork, interrupt the very same calls, and `malloc`.
#[test]
fn signal_handlers_make_calls_in_the_middle_of_calls() {
    prints_the_same("handlers", 0..=0);
}

/// A connect that comes before the ring has shown what it is for waits until the socket is used.
#[test]
fn a_program_whose_ring_changes_its_set_connects_first() {
    let place = service();
    let program = place.compile("ring");
    let (kernel, _) = place.run(&program, false);
    let (towpath, log) = place.run(&program, true);
    assert_eq!(towpath, kernel, "{log}");
    if kernel.contains("no io_uring") {
        return eprintln!("skipped: {kernel}");
    }
    assert!(log.contains("by the set: ours") && log.contains("by the ring: the kernel's"), "{log}");
}

/// As root: a program that keeps a capability becomes another user while it is told of a socket by signals.
#[test]
fn what_sends_signals_has_no_part_in_the_identity_of_the_program() {
    prints_the_same("told", 0..=0);
}

#[test]
fn at_the_limit_of_descriptors_no_number_of_the_librarys_is_the_programs() {
    prints_the_same("limit", 0..=0);
}

/// Its folder belongs to another user, and so could hold any service.
#[test]
fn a_service_that_is_not_trusted_is_said_once_and_not_asked() {
    let place = service();
    let program = place.compile("limit");
    let folder = place.control.parent().unwrap();
    if std::os::unix::fs::chown(folder, Some(4_711), None).is_err() {
        return eprintln!("skipped: not root");
    }
    let (kernel, _) = place.run(&program, false);
    let run = |trusts: Option<&str>| {
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", library()).env("TOWPATH_CONTROL", &place.control);
        let output = command.envs(trusts.map(|uid| ("TOWPATH_TRUST_UID", uid))).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), kernel);
        String::from_utf8_lossy(&output.stderr).matches("not trusted").count()
    };
    assert_eq!((run(None), run(Some("4712")), run(Some("4711"))), (1, 1, 0));
}

/// Each of its socket blocks names memory of a client that is gone.
#[test]
fn a_forked_server_asks_at_most_once_about_a_client_that_is_gone() {
    let place = service_with(Options { region_slots: Some(64), ..Options::default() });
    let (said, log) = place.run(&place.compile("gone"), true);
    assert_eq!(said, "300 answers\n", "{log}");
    assert!(!log.contains("in the kernel"), "{log}");
    let asked = log.matches("is not there: the service was asked").count();
    assert!(asked <= 3, "asked {asked} times about 3 clients:\n{log}");
}
