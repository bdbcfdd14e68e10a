//! A service of another version refuses the library, and a program hears which versions the two have. What speaks otherwise is no service.

use crate::alone::alone;
use control::{Line, Reply, Request, ToApplication, ToService};
use ring::{Error, Options, Service};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, accept, bind, listen, socket};
use std::path::Path;

const WHY: &str = "the library speaks protocol 1 with memory layout 1, the service 2 with 2: use the library of the service's version";

/// A socket at which something listens that is no service of this version.
fn listener(path: &Path) -> OwnedFd {
    let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 4).unwrap();
    listener
}

/// Answers one hello by what `answer` makes of it.
fn answer_once(listener: &OwnedFd, answer: impl FnOnce(&Line, ToService)) {
    let line = Line::new(accept(listener).unwrap());
    let hello: ToService = line.receive(true).unwrap().message;
    assert!(matches!(hello.request, Request::Hello { .. }));
    answer(&line, hello);
}

#[test]
fn a_service_of_another_version_is_named() {
    alone("version::a_service_of_another_version_is_named", check);
}

fn check() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control.sock");
    let listener = listener(&control);
    let open = || Service::open(Options { control: Some(control.clone()), ..Options::default() });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            answer_once(&listener, |line, hello| {
                let refused = Reply::Refused { errno: libc::EPROTO, reason: WHY.to_owned() };
                line.send(&ToApplication::Reply(hello.number, refused), &[], true).unwrap();
            });
            // A number that no message of ours begins with, and an end without an answer.
            answer_once(&listener, |line, _| line.send(&u64::MAX, &[], true).unwrap());
            answer_once(&listener, |_, _| ());
        });
        let Err(Error::NoService(why)) = open() else { panic!("it is refused") };
        assert!(why.ends_with(WHY), "{why}");
        for _ in 0..2 {
            let e = open().unwrap_err();
            assert!(matches!(&e, Error::NoService(why) if !why.is_empty()), "{e:?}");
        }
    });
}
