use super::*;
use std::sync::atomic::AtomicBool;

#[test]
fn who_asks_while_another_thread_connects_hears_what_became_of_it() {
    let sock = Sock::new(libc::AF_INET, false);
    let answered = AtomicBool::new(false);
    let deciding = sock.begin_deciding();
    assert!(sock.role().is_none(), "a signal handler of the connecting thread does not wait for itself");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(sock.stream().is_none());
            answered.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!answered.load(Ordering::Acquire));
        drop(deciding);
    });
    assert!(answered.load(Ordering::Acquire) && sock.role().is_none());
}
