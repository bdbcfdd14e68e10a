//! What the policy lets users do, as they are told, and how it is read anew.

use crate::common::{App, Daemon, can_be_other_users, hello, listener};
use control::{KernelReason, Reply, Report, ToApplication, ToService};
use service::{Options, Sharing};
use std::net::SocketAddr;
use std::path::PathBuf;

const USER: u32 = 61_001;
const OTHER: u32 = 61_002;
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;

/// A service with a policy file.
struct Governed {
    daemon: Daemon,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Governed {
    fn start(policy: &str, options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.toml");
        std::fs::write(&file, policy).unwrap();
        let daemon = Daemon::start(Options { policy: Some(file.clone()), ..options });
        Self { daemon, file, _folder: folder }
    }

    fn reload(&self, policy: &str) -> Result<serde_json::Value, (i32, String)> {
        std::fs::write(&self.file, policy).unwrap();
        self.daemon.ask_by(&self.daemon.dial(), Report::Reload)
    }
}

/// A rule for one port of a user.
fn rule(key: &str, address: SocketAddr) -> String {
    format!("[[rule]]\nuser = {USER}\n{key} = [\"{address}\"]\n")
}

fn reason(reply: Reply) -> KernelReason {
    let Reply::Kernel { reason } = reply else { panic!("{reply:?}") };
    reason
}

#[test]
fn what_a_rule_does_not_let_a_user_do_is_the_kernels_and_says_which_rule() {
    if !can_be_other_users() {
        return;
    }
    let ((allowed, there), (refused, elsewhere)) = (listener(), listener());
    let policy = format!("[[rule]]\nuser = {OTHER}\n{}", rule("listen", there));
    let all = Governed::start(&policy, Options::default());
    let mut app = App::of_user(&all.daemon, USER);
    app.listen(&allowed, 8);
    assert_eq!(reason(app.try_listen(&refused, 8).unwrap_err()), KernelReason::Rule(2));
    let mut other = App::of_user(&all.daemon, OTHER);
    other.listen(&refused, 8);

    all.reload(&rule("connect", elsewhere)).unwrap();
    app.try_connect(elsewhere).unwrap();
    assert_eq!(reason(app.try_connect(there).unwrap_err()), KernelReason::Rule(1));
}

#[test]
fn a_file_with_a_mistake_changes_nothing_and_only_root_and_the_services_user_reload() {
    let (socket, address) = listener();
    let uid = rustix::process::geteuid().as_raw();
    let none = format!("[[rule]]\nuser = {uid}\nlisten = []\n");
    let all = Governed::start(&none, Options::default());
    let mut app = App::new(&all.daemon);
    assert_eq!(reason(app.try_listen(&socket, 8).unwrap_err()), KernelReason::Rule(1));
    let (errno, text) = all.reload("[[rule]]\nlisten = [\"*:x\"]\n").unwrap_err();
    assert_eq!(errno, EINVAL);
    assert!(text.contains("stays as it was") && text.contains("line 2: listen: "), "{text}");
    assert_eq!(reason(app.try_listen(&socket, 8).unwrap_err()), KernelReason::Rule(1));
    let long = format!("[[rule]]\nuser = \"{}\"\n", "\u{202e}".repeat(5_000));
    assert_eq!(all.reload(&long).unwrap_err().0, EINVAL, "the answer fits its message");
    let told = all.reload(&format!("[[rule]]\nuser = {}\n[[rule]]\nuser = {uid}\n", uid + 1)).unwrap();
    assert_eq!((&told["rules"], told["policy"].as_str()), (&2.into(), all.file.to_str()));
    app.listen(&socket, 8);
    app.connect(address);
    if can_be_other_users() {
        let stranger = all.daemon.dial_as(USER);
        assert_eq!(all.daemon.ask_by(&stranger, Report::Reload).unwrap_err().0, EPERM);
    }
}

#[test]
fn users_have_no_more_than_their_rule_says_and_others_do_not_pay_for_it() {
    if !can_be_other_users() {
        return;
    }
    let limits = "flows = 5\napplications = 2\nconnections_per_second = 1000000";
    let policy = format!("[[rule]]\nuser = {USER}\n{limits}\n");
    let all = Governed::start(&policy, Options { sharing: Some(Sharing::Always), ..Options::default() });
    let (socket, address) = listener();
    let mut server = App::of_user(&all.daemon, OTHER);
    server.listen(&socket, 64);
    let mut first = App::of_user(&all.daemon, USER);
    let mut second = App::of_user(&all.daemon, USER);
    let third = all.daemon.dial_as(USER);
    third.send(&ToService { number: 1, request: hello(None) }, &[], true).unwrap();
    let answer = third.receive::<ToApplication>(true).unwrap().message;
    assert!(matches!(answer, ToApplication::Reply(1, Reply::Refused { errno: EACCES, .. })), "{answer:?}");
    for _ in 0..3 {
        first.connect(address);
    }
    for _ in 0..2 {
        second.connect(address);
    }
    assert!(second.lent.is_none(), "connections that are made without asking would not be counted");
    for app in [&mut first, &mut second] {
        assert_eq!(reason(app.try_connect(address).unwrap_err()), KernelReason::PolicyConnections);
    }
    let mut other = App::of_user(&all.daemon, OTHER);
    for _ in 0..9 {
        other.connect(address);
    }
    all.reload(&format!("[[rule]]\nuser = {USER}\nconnections_per_second = 0\n")).unwrap();
    assert_eq!(reason(first.try_connect(address).unwrap_err()), KernelReason::PolicyRate);
    all.reload(&format!("[[rule]]\nuser = {USER}\nmemory = 4096\n")).unwrap();
    assert_eq!(reason(first.try_connect(address).unwrap_err()), KernelReason::PolicyMemory);
    other.connect(address);
}

#[test]
fn what_was_lent_by_the_old_rules_is_asked_for_again() {
    let uid = rustix::process::geteuid().as_raw();
    let all = Governed::start("", Options::default());
    let (socket, address) = listener();
    let (mut server, mut client) = (App::new(&all.daemon), App::new(&all.daemon));
    server.listen(&socket, 64);
    client.connect(address);
    client.connect(address);
    let lent = client.lent.clone().unwrap();
    assert_eq!(client.memory(lent.queue).epoch(), lent.epoch);
    all.reload(&format!("[[rule]]\nuser = {uid}\nconnect = []\n")).unwrap();
    assert_ne!(client.memory(lent.queue).epoch(), lent.epoch);
    assert_eq!(reason(client.try_connect(address).unwrap_err()), KernelReason::Rule(1));
}
