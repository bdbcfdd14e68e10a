//! Which users may change the rules of congestion control, and which see them, by the kernel's credentials. Mistakes in the configuration.

use crate::common::{Daemon, can_be_other_users};
use control::{CongestionAsk, FlowSelector, Report};
use service::Options;

const USER: u32 = 61_021;
const EPERM: i32 = 1;
const EINVAL: i32 = 22;

fn set(name: Option<&str>) -> Report {
    let which = FlowSelector { port: Some(443), ..FlowSelector::default() };
    let name = name.map(|name| name.parse().unwrap());
    Report::Congestion(Box::new(CongestionAsk::Set { which, name, is_live: true }))
}

#[test]
fn only_root_and_the_services_user_set_and_all_that_are_admitted_see() {
    if !can_be_other_users() {
        return;
    }
    let daemon = Daemon::start(Options::default());
    let rules = |line| {
        daemon.ask_by(&line, Report::Congestion(Box::new(CongestionAsk::List))).unwrap()["rules"].clone()
    };
    let (errno, reason) = daemon.ask_by(&daemon.dial_as(USER), set(Some("reno"))).unwrap_err();
    assert!(errno == EPERM && reason.contains("root"), "{errno} {reason}");
    assert_eq!(rules(daemon.dial_as(USER)), serde_json::json!([]));
    let done = daemon.ask_by(&daemon.dial(), set(Some("reno"))).unwrap();
    assert_eq!((&done["rules"], &done["fitting"]), (&1.into(), &0.into()));
    assert_eq!(rules(daemon.dial_as(USER))[0]["rule"], "port=443 reno");
    let (errno, reason) = daemon.ask_by(&daemon.dial(), set(Some("nosuch"))).unwrap_err();
    assert!(
        errno == EINVAL && reason.contains("`nosuch`") && reason.contains("--cc-agents"),
        "{errno} {reason}"
    );
    daemon.ask_by(&daemon.dial(), set(None)).unwrap();
    assert_eq!(rules(daemon.dial()), serde_json::json!([]));
}

#[test]
fn a_mistake_about_agents_is_named_with_what_to_do() {
    let with = |options: Options| {
        let port = Options {
            port: Some("packet:eth9".parse().unwrap()),
            address: Some(vec!["10.9.0.2/24".parse().unwrap()]),
            ..Options::default()
        };
        options.or(port).resolve().unwrap_err().to_string()
    };
    let socket = Some("/run/towpath/cc".into());
    let of = |cc_socket: Option<std::path::PathBuf>| Options { cc_socket, ..Options::default() };
    for (options, says) in [
        (Options { cc_reports: Some(5), ..Options::default() }, "--cc-reports must be used with --cc-socket"),
        (of(Some("relative".into())), "absolute path"),
        (Options { cc_reports: Some(0), ..of(socket.clone()) }, "--cc-reports must be at least 1"),
        (Options { cc_rate_max: Some(0), ..of(socket.clone()) }, "--cc-rate-max must be at least 1"),
        (
            Options { cc_agents: Some(vec!["/run/towpath/cc".parse().unwrap()]), ..of(socket.clone()) },
            "other paths than --cc-socket",
        ),
        (
            Options { cc_agents: Some(vec!["bbr=/run/bbr".parse().unwrap()]), ..of(socket.clone()) },
            "give the agent another name",
        ),
        (
            Options { congestion: Some("copa".parse().unwrap()), ..of(socket) },
            "--congestion: there is no congestion control `copa`",
        ),
        (Options { cc_rules: Some(vec!["port=1 copa".parse().unwrap()]), ..Options::default() }, "`copa`"),
    ] {
        let error = with(options);
        assert!(error.contains(says), "{says}: {error}");
    }
}
