use super::parse;
use crate::syntax::{Action, Body, Direction, Expr, Script, Tcp, TcpOption, Tos, TroubleKind, When};
use proptest::prelude::*;

fn script(text: &str) -> Script {
    parse(text, &[]).unwrap()
}

fn tcp(text: &str) -> Tcp {
    let script = script(&format!("0 {text}"));
    let Action::Packet(packet) = &script.events[0].action else { panic!("no packet") };
    let Body::Tcp(tcp) = &packet.body else { panic!("no TCP") };
    tcp.clone()
}

#[test]
fn packet_is_read_with_all_its_parts() {
    let found = tcp("> SEW. 0:0(0) ack 1 win 65535 urg 7 <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 8>");
    assert_eq!((found.flags, found.ack, found.window, found.urgent), (0xD2, Some(1), Some(65_535), 7));
    let options = [
        TcpOption::Mss(1460),
        TcpOption::SackOk,
        TcpOption::Timestamps(100, 0),
        TcpOption::Nop,
        TcpOption::WindowScale(8),
    ];
    assert_eq!(found.options.as_deref(), Some(&options[..]));
    let found = tcp("< 53>8080 - 1:1001(1000) win 0 <nop,nop,sack 1:2 3:4>");
    assert_eq!((found.flags, found.ports, found.len), (0, Some((53, 8080)), 1000));
    assert_eq!(tcp("> . 1:1(0) ack 1 <...>").options, None);
    assert_eq!(tcp("> . 1:1(0) ack 1 win *").window, None);
    assert_eq!(tcp("> 5. 1:1(0) ack 1").flags, 0x150);
}

#[test]
fn next_event_is_not_taken_for_options() {
    let script = script("0 > . 1:1(0) ack 1\n+0 < . 1:1(0) ack 1 win 5\n+0 close(3) = 0");
    assert_eq!(script.events.len(), 3);
}

#[test]
fn ip_header_may_be_spoken_of() {
    for (text, tos) in [("[ect0]", Tos::Ecn(2)), ("(tos 0x10)", Tos::Byte(16)), ("[ect01]", Tos::Ect01)] {
        let script = script(&format!("0 > {text} . 1:1(0) ack 1"));
        let Action::Packet(packet) = &script.events[0].action else { panic!("no packet") };
        assert_eq!((packet.ip.tos, packet.direction), (tos, Direction::Out));
    }
}

#[test]
fn icmp_quotes_a_segment() {
    let script = script("0 < icmp unreachable frag_needed mtu 1200 [1:1461(1460)]");
    let Action::Packet(packet) = &script.events[0].action else { panic!("no packet") };
    let Body::Icmp(icmp) = &packet.body else { panic!("no ICMP") };
    assert_eq!((icmp.mtu, icmp.quoted), (Some(1200), Some((1, 1460))));
}

#[test]
fn times_are_absolute_relative_ranges_or_any() {
    let found: Vec<_> = script("0 `a` \n 0.5 `b`\n+.1 `c`\n* `d`\n1~2 `e`\n+.3~+.400 `f`\n+0 close(3) = 0")
        .events
        .iter()
        .map(|e| e.when)
        .collect();
    let expected = [
        When::At(0),
        When::At(500_000),
        When::After(100_000),
        When::Any,
        When::Between(1_000_000, 2_000_000),
        When::AfterBetween(300_000, 400_000),
        When::After(0),
    ];
    assert_eq!(found, expected);
}

#[test]
fn call_is_read_with_end_result_and_error() {
    let found = script(
        "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+.002 ... 0.004 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)\n+0 fcntl(3, F_GETFL) = 0x2 (flags O_RDWR)",
    );
    let Action::Call(call) = &found.events[1].action else { panic!("no call") };
    assert_eq!((call.end, call.errno.as_deref()), (Some(4000), Some("EINPROGRESS")));
    assert_eq!(call.result, Expr::Int(-1));
    let Action::Call(call) = &found.events[2].action else { panic!("no call") };
    assert_eq!((&call.result, &call.errno), (&Expr::Int(2), &None));
}

#[test]
fn structures_keep_names_and_values() {
    let found = script(
        "0 sendmsg(4, {msg_name(...)=..., msg_iov(2)=[{..., 10}, {..., 20}], msg_flags=0}, MSG_MORE|MSG_DONTWAIT) = 30",
    );
    let Action::Call(call) = &found.events[0].action else { panic!("no call") };
    assert!(matches!(call.args[1].field("msg_iov"), Some(Expr::List(items)) if items.len() == 2));
    assert!(matches!(&call.args[2], Expr::Or(items) if items.len() == 2));
}

#[test]
fn commands_stand_before_within_and_after() {
    let found = script("--mtu=1400\n`first`\n0 `second`\n+0 %{ assert True }%\n`last`");
    assert_eq!(found.options[0].value.as_deref(), Some("1400"));
    assert_eq!(found.start.map(|c| c.text).as_deref(), Some("first"));
    assert_eq!(found.events.len(), 2);
    assert_eq!(found.cleanup.map(|c| (c.line, c.text)), Some((5, "last".into())));
}

#[test]
fn mistakes_are_told_with_their_line() {
    let line = |text: &str| parse(text, &[]).unwrap_err().line;
    assert_eq!(line("0 close(3) = 0\n+0 > . 1:2(0) ack 1"), 2);
    assert_eq!(line("0 close(3) = 0\n\n+0 close(3"), 3);
    assert_eq!(line("0 > . 1:1(0) ack 1 <mss 1460,nop>"), 1);
    for text in [
        "",
        "0 > Q 1:1(0)",
        "0 close(3)",
        "0 > . 1:1(0) ack 4294967296",
        "0 > . 1:1(0) <sack>",
        "x close(3) = 0",
    ] {
        assert!(matches!(parse(text, &[]).unwrap_err().kind, TroubleKind::Syntax(_)), "{text}");
    }
}

#[test]
fn what_is_in_the_language_and_not_supported_is_told_apart() {
    for text in ["0 > udp (5)", "0 > S 0:0(0) <FO abcd,nop,nop>", "0 < ipv4 1.2.3.4 > 5.6.7.8: . 1:1(0)"] {
        assert!(matches!(parse(text, &[]).unwrap_err().kind, TroubleKind::Unsupported(_)), "{text}");
    }
}

#[test]
fn depth_is_bounded() {
    let deep = format!("0 f({}1{}) = 0", "[".repeat(5000), "]".repeat(5000));
    assert!(parse(&deep, &[]).is_err());
    let wide = format!("0 f(1{}) = 0", "|1".repeat(5000));
    assert!(parse(&wide, &[]).is_ok());
}

proptest! {
    #[test]
    fn any_text_is_a_script_or_an_error(text in "[-0-9a-zA-Z.:<>(){}\\[\\],=|~+*% `\"\\n]{0,200}") {
        let _ = parse(&text, &[]);
    }
}
