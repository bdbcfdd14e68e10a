//! Tests of the sources of values and of the values that are refused.

use super::*;

#[test]
fn flag_before_file_before_default() {
    let file: Options = toml::from_str("ring_max = 8192\ncores = 2\nsharing = \"never\"").unwrap();
    let flags = Options { cores: Some(CoresChoice::Fixed(3)), ..Options::default() };
    let c = flags.or(file).resolve().unwrap();
    assert_eq!((c.cores.most, c.ring_max, c.sharing, c.region_slots), (3, 8192, Sharing::Never, 65_536));
    assert_eq!(c.receive_max, 8192, "one limit for both directions");
    let c = Options::default().resolve().unwrap();
    assert_eq!((c.ring_max, c.receive_max), (4 << 20, 32 << 20));
}

#[test]
fn accurate_ecn_turns_ecn_on_unless_it_is_turned_off() {
    let of = |text: &str| toml::from_str::<Options>(text).unwrap().link().switches;
    let [.., ecn, accurate] = of("accurate_ecn = true");
    assert!(ecn && accurate);
    let [.., ecn, accurate] = of("accurate_ecn = true\necn = false");
    assert!(!ecn && accurate);
    let [.., ecn, accurate] = of("");
    assert!(!ecn && !accurate);
}

#[test]
fn cores_are_a_number_or_as_many_as_the_load_needs() {
    let of = |text: &str| toml::from_str::<Options>(text).ok()?.cores;
    for (text, choice) in [
        ("cores = 2", CoresChoice::Fixed(2)),
        ("cores = \"3\"", CoresChoice::Fixed(3)),
        ("cores = \"auto\"", CoresChoice::Auto(None)),
        ("cores = \"auto:4\"", CoresChoice::Auto(Some(4))),
    ] {
        assert_eq!(of(text), Some(choice), "{text}");
        let shown = toml::to_string(&Options { cores: Some(choice), ..Options::default() }).unwrap();
        assert_eq!(of(&shown), Some(choice), "{shown}");
    }
    for text in ["cores = \"many\"", "cores = \"auto:\"", "cores = \"2:3\"", "cores = 300"] {
        assert_eq!(of(text), None, "{text}");
    }
    for cores in [CoresChoice::Fixed(0), CoresChoice::Auto(Some(0)), CoresChoice::Auto(Some(15))] {
        let error = Options { cores: Some(cores), ..Options::default() }.resolve().unwrap_err();
        assert!(error.to_string().contains("cores must be from 1 to 14"), "{error}");
    }
    assert!(Options::default().resolve().unwrap().cores.is_auto, "the default");
    let resolved = |choice: CoresChoice, processors| choice.resolve(|| processors);
    assert_eq!(resolved(CoresChoice::Auto(None), 40), Cores { most: 14, is_auto: true });
    assert_eq!(resolved(CoresChoice::Auto(None), 2), Cores { most: 2, is_auto: true });
    assert_eq!(resolved(CoresChoice::Fixed(2), 1), Cores { most: 2, is_auto: false });
}

#[test]
fn unknown_keys_and_values_out_of_range_are_errors() {
    assert!(toml::from_str::<Options>("colour = 1").is_err());
    let error = Options { ring_max: Some(5000), ..Options::default() }.resolve().unwrap_err();
    assert!(error.to_string().contains("ring_max"));
    let same = Some(vec!["10.9.0.2/24".to_owned().try_into().unwrap()]);
    let port = Some("tap".parse::<PortChoice>().unwrap());
    let twice = Options { port, address: same.clone(), host_address: same, ..Options::default() };
    assert!(twice.resolve().unwrap_err().to_string().contains("--host-address"));
    let packet = |options: Options| {
        let options = Options { port: Some("packet:eth1".parse().unwrap()), ..options };
        options.resolve().unwrap_err().to_string()
    };
    let host_address = Some(vec!["10.9.0.1/24".to_owned().try_into().unwrap()]);
    assert!(packet(Options { host_address, ..Options::default() }).contains("--port tap"));
    assert!(
        packet(Options { port_name: Some("tp0".to_owned()), ..Options::default() }).contains("--port-name")
    );
    let address = Some(vec!["10.9.0.2/24".to_owned().try_into().unwrap()]);
    let port = Some("tap".parse::<PortChoice>().unwrap());
    let nowhere = Options { port, address, hop_limit: Some(0), ..Options::default() };
    assert!(nowhere.resolve().unwrap_err().to_string().contains("from 1 to 255"));
    let error = Options { mtu: Some(9000), ..Options::default() }.resolve().unwrap_err();
    assert!(error.to_string().contains("--port tap"), "no key is accepted and ignored");
}

#[test]
fn values_that_no_port_takes_are_errors_that_name_the_flag() {
    let networks = |list: &[&str]| Some(list.iter().map(|n| n.parse::<Network>().unwrap()).collect());
    let base = || Options {
        port: Some("tap".parse::<PortChoice>().unwrap()),
        address: networks(&["10.9.0.2/24"]),
        ..Options::default()
    };
    assert!(base().resolve().is_ok());
    let multicast = Some("01:00:00:00:00:01".parse::<Mac>().unwrap());
    for (flag, options) in [
        ("--mac", Options { mac: multicast, ..base() }),
        ("--mtu", Options { mtu: Some(500), ..base() }),
        ("--mtu", Options { mtu: Some(1000), address: networks(&["fd00::2/64"]), ..base() }),
        ("--address", Options { address: networks(&["224.0.0.1/24"]), ..base() }),
        ("--address", Options { address: networks(&["::/64"]), ..base() }),
        ("--host-address", Options { host_address: networks(&["10.9.0.1/24", "10.9.1.1/24"]), ..base() }),
        ("--buffer-initial", Options { buffer_initial: Some(5), ..base() }),
    ] {
        let text = options.resolve().unwrap_err().to_string();
        assert!(text.starts_with(flag) && text.contains("TOWPATH_"), "{flag}: {text}");
    }
}
