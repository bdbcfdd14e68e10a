use super::*;
use base::Seed;

/// A machine with two users, one group and one named namespace.
struct Machine;

impl Names for Machine {
    fn user(&self, name: &str) -> Option<u32> {
        [("www", 33), ("redis", 112)].into_iter().find(|(known, _)| *known == name).map(|(_, id)| id)
    }
    fn group(&self, name: &str) -> Option<u32> {
        (name == "web").then_some(50)
    }
    fn namespace(&self, path: &str) -> Option<u64> {
        (path == "/run/netns/web").then_some(7)
    }
}

/// The service's own namespace.
const OWN: u64 = 1;

fn policy(text: &str) -> Policy {
    Policy::new(Door::Open, parse(text, &Machine).unwrap(), OWN, Limits { applications: 10, ..Limits::NONE })
}

fn process(uid: u32) -> Subject {
    Subject { uid, gid: uid, cgroup: None, namespace: OWN }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn mistake(text: &str) -> String {
    parse(text, &Machine).unwrap_err().to_string()
}

#[test]
fn without_rules_the_own_namespace_may_what_linux_allows_and_others_nothing() {
    let all = policy("");
    let stranger = Subject { namespace: 2, ..process(0) };
    for address in ["127.0.0.1:22", "[::]:80", "10.0.0.1:8080"].map(at) {
        assert_eq!(all.may_listen(&process(1000), address, false), Ok(()));
        assert_eq!(all.may_connect(&process(1000), address), Ok(()));
        let refusal = all.may_listen(&stranger, address, false).unwrap_err();
        assert_eq!(refusal.rule, None);
        assert!(refusal.to_string().contains("its network namespace is not the service's"), "{refusal}");
        assert!(all.may_connect(&stranger, address).is_err());
    }
    assert_eq!(all.limits(&process(1)), Limits { applications: 10, ..Limits::NONE });
    assert!(all.admits(&stranger), "it may ask, and is told why nothing is accelerated");
}

#[test]
fn the_first_rule_that_fits_decides_everything() {
    let all = policy(
        "[[rule]]\nuser = \"www\"\nlisten = [\"*:80\", \"*:443\"]\nflows = 100\n\
         [[rule]]\nuser = [33, \"redis\"]\nconnect = []\nflows = 7\nmemory = \"256 MiB\"\n\
         [[rule]]\nlisten = [\"127.0.0.0/8:1024-65535\"]\nconnections_per_second = 5",
    );
    let (www, redis, other) = (process(33), process(112), process(1000));
    assert_eq!(all.may_listen(&www, at("10.0.0.1:443"), false), Ok(()));
    let refusal = all.may_listen(&www, at("10.0.0.1:8080"), false).unwrap_err();
    assert_eq!(refusal.to_string(), "the policy's rule 1 does not let user 33 listen at 10.0.0.1:8080");
    assert_eq!(all.may_connect(&www, at("10.0.0.1:8080")), Ok(()), "rule 2 fits it, but is not the first");
    assert_eq!((all.limits(&www).flows, all.limits(&www).memory), (100, u64::MAX));
    let refusal = all.may_connect(&redis, at("[fd00::1]:1")).unwrap_err();
    assert_eq!(refusal.to_string(), "the policy's rule 2 does not let user 112 connect to [fd00::1]:1");
    assert_eq!(all.may_listen(&redis, at("0.0.0.0:22"), false), Ok(()), "what it does not name is Linux's");
    assert_eq!((all.limits(&redis).flows, all.limits(&redis).memory), (7, 256 << 20));
    assert_eq!(all.may_listen(&other, at("127.0.0.1:1024"), false), Ok(()));
    assert!(all.may_listen(&other, at("127.0.0.1:1023"), false).is_err());
    assert_eq!(all.limits(&other).new_connections_per_second, 5);
    assert_eq!(all.limits(&other).applications, 10, "as configured");
}

#[test]
fn a_wildcard_needs_the_whole_family_and_both_where_it_takes_both() {
    let v6 = policy("[[rule]]\nlisten = [\"[::]/0\", \"127.0.0.0/8\"]");
    assert_eq!(v6.may_listen(&process(1), at("[::]:80"), true), Ok(()));
    assert!(v6.may_listen(&process(1), at("[::]:80"), false).is_err(), "it would take IPv4, too");
    assert!(v6.may_listen(&process(1), at("0.0.0.0:80"), false).is_err());
    assert_eq!(v6.may_listen(&process(1), at("[::ffff:127.0.0.9]:80"), false), Ok(()), "that is IPv4");
    assert!(v6.may_listen(&process(1), at("[::ffff:10.0.0.9]:80"), false).is_err());
    let both = policy("[[rule]]\nlisten = [\"[::]/0:80\", \"0.0.0.0/0:80\"]");
    assert_eq!(both.may_listen(&process(1), at("[::]:80"), false), Ok(()));
    let one = policy("[[rule]]\nlisten = [\"[::]:80\"]");
    assert!(one.may_listen(&process(1), at("[::1]:80"), true).is_err(), "the unspecified address alone");
}

#[test]
fn groups_control_groups_and_namespaces_tell_processes_apart() {
    let all = policy(
        "[[rule]]\ngroup = \"web\"\ncgroup = \"/system.slice/\"\nnamespace = \"any\"\napplications = 1\n\
         [[rule]]\nnamespace = \"/run/netns/web\"\napplications = 2\n\
         [[rule]]\nuser = 5\napplications = 3",
    );
    let limit = |subject: &Subject| all.limits(subject).applications;
    let web = |cgroup: Option<&str>, namespace| Subject {
        gid: 50,
        cgroup: cgroup.map(str::to_owned),
        namespace,
        ..process(5)
    };
    for (cgroup, expected) in
        [("/system.slice/nginx.service", 1), ("/system.slice", 1), ("/system.slices", 3), ("/", 3)]
    {
        assert_eq!(limit(&web(Some(cgroup), OWN)), expected, "{cgroup}");
    }
    assert_eq!(limit(&web(None, OWN)), 3, "an unknown control group fits no rule that asks for one");
    assert_eq!(limit(&web(Some("/system.slice/a"), 99)), 1, "any namespace");
    assert_eq!(limit(&web(None, 7)), 2, "the named one");
    assert_eq!(limit(&web(None, 99)), 10, "a rule that names none is for the service's own");
    assert!(all.asks_for_cgroups() && !policy("[[rule]]\nuser = 1").asks_for_cgroups());
    let root = policy("[[rule]]\ncgroup = \"/\"\napplications = 4");
    assert_eq!(root.limits(&web(Some("/a/b"), OWN)).applications, 4);
}

#[test]
fn rates_and_shares_are_those_of_the_rule_that_fits() {
    let all = policy(
        "[[rule]]\nuser = \"www\"\nrate = \"200 Mbit/s\"\nrate_per_process = \"8 kbit/s\"\nshare = 64\n\
         [[rule]]\nrate_of_all = \"2GB/s\"",
    );
    let rate = std::num::NonZeroU64::new;
    let www =
        Sending { rule: 1, per_process: rate(1000), per_user: rate(25_000_000), of_all: None, share: 64 };
    assert_eq!(all.sending(&process(33)), www);
    let other = Sending { rule: 2, of_all: rate(2_000_000_000), ..Sending::UNBOUNDED };
    assert_eq!(all.sending(&process(34)), other);
    assert_eq!(policy("[[rule]]\nuser = 5").sending(&process(33)), Sending::UNBOUNDED);
}

#[test]
fn the_door_is_before_the_rules_and_a_rule_can_close_it() {
    let rules = parse("[[rule]]\nuser = 8\napplications = 0", &Machine).unwrap();
    let only = Door::Only { users: vec![7, 8], groups: vec![50] };
    let all = Policy::new(only, rules, OWN, Limits::NONE);
    assert!(all.admits(&process(7)) && all.admits(&Subject { gid: 50, ..process(1) }));
    assert!(!all.admits(&process(8)) && !all.admits(&process(9)));
    assert!(all.with_rules(Vec::new()).admits(&process(8)), "the door stays, the rules are new");
}

#[test]
fn every_mistake_is_told_with_its_line_its_key_and_what_was_expected() {
    let rule = |line: &str| mistake(&format!("# comment\n[[rule]]\n{line}\n"));
    for (line, key, expected) in [
        ("user = \"nosuch\"", "user", "the name or number of a user of this machine instead of `nosuch`"),
        ("user = -1", "user", "instead of -1"),
        ("group = [\"web\", 1.5]", "group", "instead of a value of the type float"),
        ("cgroup = \"system.slice\"", "cgroup", "the path of a control group"),
        ("namespace = \"web\"", "namespace", "\"own\", \"any\" or the path"),
        ("namespace = \"/nosuch\"", "namespace", "instead of `/nosuch`"),
        ("listen = \"*:80\"", "listen", "expected an array of addresses"),
        ("listen = [\"*:80\", \"*:80-70\"]", "listen", "instead of `*:80-70`"),
        ("connect = [\"::1:80\"]", "connect", "an IPv6 address in []"),
        ("memory = \"256 MB\"", "memory", "with KiB, MiB or GiB instead of `256 MB`"),
        ("memory = \"99999999999999 GiB\"", "memory", "expected bytes"),
        ("flows = 4294967295", "flows", "a whole number from 0"),
        ("rate = \"1 MiB\"", "rate", "text like \"200 Mbit/s\" or \"25 MB/s\" with kbit"),
        ("rate = 1000", "rate", "instead of 1000"),
        ("rate_per_process = \"7 kbit/s\"", "rate_per_process", "from 8 kbit/s"),
        ("rate_of_all = \"99999999999999999999 Gbit/s\"", "rate_of_all", "to 1000 GB/s"),
        ("share = 0", "share", "a whole number from 1 to 64 instead of 0"),
        ("colour = 1", "colour", "expected one of the keys user"),
    ] {
        let text = rule(line);
        assert!(text.starts_with(&format!("line 3: {key}: ")) && text.contains(expected), "{text}");
    }
    assert!(rule("user = \"a\\u202e\"").contains("`a\\u{202e}`"), "nothing hidden reaches a terminal");
    assert!(mistake("[rule]\nuser = 1").starts_with("line 1: rule: expected [[rule]]"));
    assert!(mistake("rule = [1]").starts_with("line 1: rule: expected [[rule]]"));
    assert!(mistake("\n\nrules = []").starts_with("line 3: rules: "));
    assert!(mistake("[[rule]]\nuser = \n").starts_with("line 2: expected TOML: "));
    assert!(mistake("[[rule]]\nuser = 1\nuser = 2\n").starts_with("line 3: expected TOML: "));
    assert!(mistake(&"[[rule]]\n".repeat(1025)).contains("1024 rules at most"));
}

#[test]
fn places_read_as_they_are_meant() {
    let place = |text: &str| {
        let rules = parse(&format!("[[rule]]\nlisten = [\"{text}\"]"), &Machine).ok()?;
        rules[0].listen.as_ref().map(|places| places[0].clone())
    };
    for (text, inside, outside) in [
        ("10.0.0.1", "10.0.0.1:1", "10.0.0.2:1"),
        ("10.0.0.1:80", "10.0.0.1:80", "10.0.0.1:81"),
        ("10.0.0.0/8:1-2", "10.255.0.1:2", "11.0.0.1:2"),
        ("0.0.0.0/0", "255.1.2.3:9", "[::1]:9"),
        ("[::]/0", "[ffff::1]:9", "1.2.3.4:9"),
        ("[fd00::]/8:80", "[fdff::1]:80", "[fc00::1]:80"),
        ("[fd00::1]:80-90", "[fd00::1]:85", "[fd00::2]:85"),
        ("*:8080", "[::1]:8080", "1.2.3.4:8081"),
        ("127.3.0.0/8", "127.9.9.9:0", "126.0.0.1:0"),
    ] {
        let place = place(text).unwrap();
        assert!(place.contains(at(inside)) && !place.contains(at(outside)), "{text}");
    }
    assert!(place("*").unwrap().contains(at("[::1]:0")));
    for text in
        ["", ":", "*80", "*:", "*:x", "10.0.0.1/33", "10.0.0.1/", "10.0.0.1:", "10.0.0/8", "[::1", "::1"]
    {
        assert!(place(text).is_none(), "{text}");
    }
    for text in
        ["[::1]80", "[::]/129", "[::]/300", "*:70000", "*:1-", "*:-1", "*:+1", "[10.0.0.1]:1", "fd00::1"]
    {
        assert!(place(text).is_none(), "{text}");
    }
}

#[test]
fn random_text_is_a_policy_or_a_mistake_never_a_panic() {
    const WORDS: [&str; 20] = [
        "[[rule]]", "\n", "user", "=", "[", "]", "\"", "*:80", "listen", "[::]/0", "1", "-", "memory",
        "256 MiB", ",", "\u{202e}", "{", "}", "ü", " ",
    ];
    let mut rng = Seed::new(23);
    for _ in 0..20_000 {
        let text: String = (0..rng.below(30)).map(|_| WORDS[rng.below(20) as usize]).collect();
        if let Err(mistake) = parse(&text, &Machine) {
            let lines = 1 + text.matches('\n').count();
            assert!((1..=lines).contains(&mistake.line), "{text:?}: {mistake}");
        }
    }
}

#[test]
fn a_file_that_others_may_write_is_no_policy() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    assert_eq!(Source::Perhaps(path.clone()).read(true), Ok(Vec::new()), "there is none");
    let error = Source::File(path.clone()).read(true).unwrap_err();
    assert!(error.contains("policy.toml") && error.contains("cannot be read"), "{error}");
    std::fs::write(&path, "[[rule]]\nuser = 0\n[[rule]]\nusr = 1\n").unwrap();
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o646);
    assert!(Source::File(path.clone()).read(true).unwrap_err().contains("other users may write it"));
    mode(0o644);
    let error = Source::File(path.clone()).read(true).unwrap_err();
    assert!(error.contains("policy.toml, line 4: usr: expected one of the keys"), "{error}");
    std::fs::write(&path, "[[rule]]\nuser = \"root\"\n").unwrap();
    assert_eq!(Source::File(path).read(true).unwrap()[0].users, Some(vec![0]));
    let error = Source::File(folder.path().to_owned()).read(true).unwrap_err();
    assert!(error.contains("expected a file"), "{error}");
}

#[test]
fn no_namespace_is_entered_after_the_start_and_those_entered_before_are_known() {
    let [early, late] = [true, false].map(SystemNames::read);
    assert_eq!((late.namespace("/proc/self/ns/net"), early.namespace("/nosuch")), (None, None));
    let Some(own) = early.namespace("/proc/self/ns/net") else {
        eprintln!("skipped: only root may enter a network namespace");
        return;
    };
    assert_eq!(own, crate::sys::own_namespace());
    assert_eq!(late.namespace("/proc/self/ns/net"), Some(own));
    assert_eq!(early.namespace("/proc/self/ns/uts"), None, "that is none of the network");
}
