//! Tests of the filter, each in a thread of its own.

mod ways;

use super::*;
use crate::config::Options;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, socket, socket_with};
use rustix::process::{getpid, getppid};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs `test` behind the filter.
fn filtered<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        thread::set_no_new_privs(true).unwrap();
        filter::install(&Options::default().resolve().unwrap()).unwrap();
        test()
    });
    thread.join().expect("the test passes")
}

fn status(field: &str) -> String {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

#[test]
fn the_page_shows_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/privileges.md");
    let text = std::fs::read_to_string(path).unwrap();
    // Other architectures have fewer calls.
    if cfg!(target_arch = "x86_64") {
        assert!(text.contains(&page()), "docs/privileges.md lacks this:\n{}", page());
    }
}

#[test]
fn calls_that_the_service_never_makes_are_refused() {
    filtered(|| {
        for (name, number) in table::NEVER.into_iter().flatten() {
            assert_eq!(sys::attempt(*number, &[0; 4]), Err(Errno::PERM), "{name}");
        }
    });
}

#[test]
fn calls_that_nobody_has_foreseen_do_not_exist() {
    // Without the filter `times` accepts a null pointer, and `clone3` returns EINVAL.
    assert!(sys::attempt(libc::SYS_times, &[0; 4]).is_ok());
    filtered(|| {
        for number in [libc::SYS_times, libc::SYS_uname, libc::SYS_clone3, libc::SYS_connect] {
            assert_eq!(sys::attempt(number, &[0; 4]), Err(Errno::NOSYS));
        }
    });
}

#[test]
fn no_program_is_started_and_no_process() {
    let other = getppid().expect("a test has a parent").as_raw_nonzero().get();
    filtered(move || {
        let refused = |error: std::io::Error| error.raw_os_error() == Some(libc::EPERM);
        assert!(refused(Command::new("/bin/true").exec()));
        assert!(Command::new("/bin/true").spawn().is_err_and(refused));
        assert_eq!(sys::attempt(libc::SYS_clone, &[libc::SIGCHLD as usize, 0, 0, 0]), Err(Errno::PERM));
        assert_eq!(sys::attempt(libc::SYS_tgkill, &[other as usize, other as usize, 0, 0]), Err(Errno::PERM));
        let [own, this] = [getpid(), thread::gettid()].map(|id| id.as_raw_nonzero().get() as usize);
        assert_eq!(
            sys::attempt(libc::SYS_tgkill, &[own, this, 0, 0]),
            Ok(0),
            "by which abort ends a process"
        );
    });
}

#[test]
fn files_are_read_and_not_written() {
    filtered(|| {
        let own = std::env::current_exe().unwrap();
        for options in [
            OpenOptions::new().write(true),
            OpenOptions::new().read(true).write(true),
            OpenOptions::new().append(true),
        ] {
            assert_eq!(options.open(&own).unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        assert_eq!(File::create(own.with_extension("new")).unwrap_err().raw_os_error(), Some(libc::EPERM));
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        assert_eq!(
            rustix::fs::open(&own, flags, Mode::empty()).err(),
            Some(Errno::PERM),
            "by the older call"
        );
        rustix::fs::open(&own, OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(File::open(own).unwrap().read(&mut [0; 4]).unwrap(), 4);
    });
}

#[test]
fn arguments_that_the_service_never_passes_are_refused() {
    filtered(|| {
        assert_eq!(socket(AddressFamily::PACKET, SocketType::RAW, None).err(), Some(Errno::PERM));
        assert!(UdpSocket::bind("127.0.0.1:0").is_err());
        let (exec, private) = (libc::PROT_EXEC as usize, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize);
        assert_eq!(sys::attempt(libc::SYS_mmap, &[0, 4096, exec, private]), Err(Errno::PERM));
        assert_eq!(sys::attempt(libc::SYS_mprotect, &[0, 0, exec, 0]), Err(Errno::PERM));
        assert_eq!(
            sys::attempt(libc::SYS_unshare, &[libc::CLONE_NEWNET as usize, 0, 0, 0]),
            Err(Errno::PERM)
        );
        assert_eq!(
            sys::attempt(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as usize, 1, 0, 0]),
            Err(Errno::PERM)
        );
        assert_eq!(sys::attempt(libc::SYS_ioctl, &[0, libc::TIOCSTI as usize, 0, 0]), Err(Errno::PERM));
    });
}

#[test]
fn what_a_service_does_goes_on() {
    filtered(|| {
        assert!(
            std::thread::Builder::new()
                .name("named".to_owned())
                .spawn(|| sys::attempt(libc::SYS_unshare, &[libc::CLONE_FILES as usize, 0, 0, 0]))
                .unwrap()
                .join()
                .unwrap()
                .is_ok()
        );
        let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&held, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        let diagnosis = rustix::net::netlink::SOCK_DIAG;
        socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            rustix::net::SocketFlags::CLOEXEC,
            Some(diagnosis),
        )
        .unwrap();
        assert!(std::panic::catch_unwind(|| panic!("as a bug does")).is_err());
        assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() > 2);
        std::thread::sleep(std::time::Duration::from_nanos(1));
    });
}

#[test]
fn a_confined_thread_has_what_the_table_keeps() {
    let is_root = rustix::process::geteuid().is_root();
    let config = Options::default().resolve().unwrap();
    let before = thread::capabilities(None).unwrap().permitted;
    std::thread::spawn(move || {
        confine(&config).unwrap();
        assert!(table::kept(&config).is_empty(), "no feature needs a capability while it serves");
        let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&held, &"0.0.0.0:0".parse::<SocketAddr>().unwrap()).unwrap();
        let kept = format!("{:016x}", (table::kept(&config) & before).bits());
        assert_eq!([status("CapEff"), status("CapPrm")], [kept.clone(), kept]);
        assert_eq!([status("CapInh"), status("CapAmb")], ["0".repeat(16), "0".repeat(16)]);
        assert!(!before.contains(CapabilitySet::SETPCAP) || status("CapBnd") == "0".repeat(16));
        assert_eq!((status("NoNewPrivs"), status("Seccomp")), ("1".to_owned(), "2".to_owned()));
        if is_root {
            // The service can still open files that root owns; `--user` removes that, too.
            assert!(File::open("/proc/1/mem").is_err());
        }
    })
    .join()
    .unwrap();
}

#[test]
fn another_user_is_become_and_cannot_come_back() {
    let Ok(config) = Options { user: Some("nobody".to_owned()), ..Options::default() }.resolve() else {
        return println!("skipped: needs root, and a user nobody");
    };
    let user = config.user.clone().unwrap();
    std::thread::spawn(move || {
        confine(&config).unwrap();
        let (uid, gid) = (user.uid.as_raw().to_string(), user.gid.as_raw().to_string());
        assert!(status("Uid").split_whitespace().all(|each| each == uid), "{}", status("Uid"));
        assert!(status("Gid").split_whitespace().all(|each| each == gid), "{}", status("Gid"));
        assert_eq!(status("Groups"), "");
        assert_eq!(status("CapEff"), format!("{:016x}", table::kept(&config).bits()));
        assert_eq!(thread::set_thread_uid(rustix::process::Uid::ROOT), Err(Errno::PERM));
        assert!(File::open("/etc/shadow").is_err());
    })
    .join()
    .unwrap();
}

#[test]
fn users_are_found_by_name_and_number() {
    let raw = |text: &str| User::find(text).map(|user| (user.uid.as_raw(), user.gid.as_raw()));
    assert_eq!(raw("12:34"), Some((12, 34)));
    for wrong in [
        "root",
        "0",
        "0:12",
        "12:no-such-group",
        "no-such-user",
        "",
        ":",
        "4294967295:1",
        "1:4294967295",
        "a\0b",
    ] {
        assert_eq!(raw(wrong), None, "{wrong:?}");
    }
    let Some((uid, gid)) = raw("nobody") else { return println!("skipped: there is no user nobody") };
    assert_eq!(raw(&format!("{uid}:{gid}")), Some((uid, gid)));
    assert_eq!(raw("nobody:12"), Some((uid, 12)));
}
