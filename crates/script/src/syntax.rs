//! The syntax tree of a script. It is independent of the stack and of running time.

use std::net::IpAddr;

/// Microseconds of script time.
pub type Micros = i64;

/// The reason why a script cannot be run, or has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// Line of the script, from 1; 0: the command line.
    pub line: u32,
    /// Kind and text of the error.
    pub kind: TroubleKind,
}

/// The kind of a [`Trouble`], with its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TroubleKind {
    /// The script is not in the language, or an event has failed.
    Syntax(String),
    /// The script is in the language, but needs something that this runner or this stack does not have.
    Unsupported(String),
}

impl Trouble {
    pub(crate) fn syntax(line: u32, what: impl Into<String>) -> Self {
        Self { line, kind: TroubleKind::Syntax(what.into()) }
    }

    pub(crate) fn unsupported(line: u32, what: impl Into<String>) -> Self {
        Self { line, kind: TroubleKind::Unsupported(what.into()) }
    }
}

/// A script with options, events and commands.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// Options `--name=value` at its top.
    pub options: Vec<OptionLine>,
    /// The shell command before the first event.
    pub start: Option<Command>,
    /// The events, in order.
    pub events: Vec<Event>,
    /// The shell command after the last event.
    pub cleanup: Option<Command>,
}

/// An option `--name=value`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionLine {
    /// Line of the option, from 1.
    pub line: u32,
    /// The name without dashes.
    pub name: String,
    /// The text behind the `=`, if any.
    pub value: Option<String>,
}

/// A shell command in back quotes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Line on which it begins, from 1.
    pub line: u32,
    /// The text of the command.
    pub text: String,
}

/// An action, or an expected packet, with its time.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Line of the event, from 1.
    pub line: u32,
    /// The time of the event.
    pub when: When,
    /// The action at that time.
    pub action: Action,
}

/// The time at which an event is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// `*`: at any time.
    Any,
    /// `T`: microseconds since the script began.
    At(Micros),
    /// `+T`: microseconds since the previous event.
    After(Micros),
    /// `A~B`: a range of times since the script began.
    Between(Micros, Micros),
    /// `+A~+B`: a range of times since the previous event.
    AfterBetween(Micros, Micros),
}

/// The action of an event.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// A packet goes to the stack, or is expected from it.
    Packet(Packet),
    /// The application makes a call.
    Call(Call),
    /// A shell command, as text.
    Command(String),
    /// Python code between `%{` and `}%`.
    Code(String),
}

/// The direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// `<`: to the stack.
    In,
    /// `>`: from the stack.
    Out,
}

/// A packet of a script.
#[derive(Clone, PartialEq, Debug)]
pub struct Packet {
    /// The direction of the packet.
    pub direction: Direction,
    /// Fields of its IP header.
    pub ip: IpInfo,
    /// The TCP or ICMP content.
    pub body: Body,
}

/// Fields of an IP header: `[ect0]`, `(tos 0x10)`, `(ttl 64)`, `(flowlabel 0x1)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpInfo {
    /// The byte with DSCP and ECN.
    pub tos: Tos,
    /// Time to live or hop limit; `None`: not given.
    pub ttl: Option<u8>,
    /// Flow label of IPv6; `None`: not given.
    pub flow_label: Option<u32>,
}

/// The given part of the byte with DSCP and ECN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tos {
    /// No part is given.
    #[default]
    Unsaid,
    /// The two ECN bits are given.
    Ecn(u8),
    /// `ect01`: ECT(0) or ECT(1).
    Ect01,
    /// All eight bits are given.
    Byte(u8),
}

/// The content of a packet.
#[derive(Clone, PartialEq, Debug)]
pub enum Body {
    /// The packet carries TCP.
    Tcp(Tcp),
    /// The packet carries ICMP.
    Icmp(Icmp),
}

/// A TCP segment in script numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tcp {
    /// Ports `source > destination`, if given.
    pub ports: Option<(u16, u16)>,
    /// FIN, SYN and so on, as in `wire::TcpFlags`.
    pub flags: u16,
    /// True when AE, CWR and ECE were written as one digit.
    pub has_ace: bool,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Number of payload bytes.
    pub len: u32,
    /// `ack N`: acknowledgement number, if given.
    pub ack: Option<u32>,
    /// `win N`: window field, if given.
    pub window: Option<u16>,
    /// `urg N`: urgent pointer, or 0.
    pub urgent: u16,
    /// The options; `None` for `<...>`: any.
    pub options: Option<Vec<TcpOption>>,
}

/// One TCP option. Options keep their order and padding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpOption {
    /// Kind 0: end of options, also as padding.
    Eol,
    /// Kind 1: one byte of padding.
    Nop,
    /// Kind 2: maximum segment size, bytes.
    Mss(u16),
    /// Kind 3: shift of the window.
    WindowScale(u8),
    /// Kind 4: SACK is permitted.
    SackOk,
    /// Kind 5: SACK blocks, left and right edges.
    Sack(Vec<(u32, u32)>),
    /// Kind 8: timestamp value and echo.
    Timestamps(u32, u32),
    /// Any other kind, and its data.
    Other(u8, Vec<u8>),
}

/// An ICMP message in script numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Icmp {
    /// Name of the type, or `type_N`.
    pub kind: String,
    /// Name of the code, or `code_N`.
    pub code: Option<String>,
    /// `mtu N`: bytes, if given.
    pub mtu: Option<u32>,
    /// First sequence number and length of the quoted segment.
    pub quoted: Option<(u32, u32)>,
}

/// A system call of the application.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// Name of the call.
    pub name: String,
    /// Arguments of the call.
    pub args: Vec<Expr>,
    /// For a blocking call, when it returns, counted as in [`When`].
    pub end: Option<Micros>,
    /// The value that it must return.
    pub result: Expr,
    /// Name of the expected error, if given.
    pub errno: Option<String>,
}

/// An argument, or part of one.
#[derive(Clone, PartialEq, Debug)]
pub enum Expr {
    /// Three points: `...`
    Ellipsis,
    /// A number, decimal or hexadecimal.
    Int(i64),
    /// The name of a constant.
    Word(String),
    /// Bytes in double quotes.
    Text(Vec<u8>),
    /// Bits joined by or: `a | b`
    Or(Vec<Expr>),
    /// A list such as `[a, b]`
    List(Vec<Expr>),
    /// A structure such as `{name = a, b}`
    Struct(Vec<Field>),
    /// A function such as `htons(80)` or `inet_addr("1.2.3.4")`
    Apply(String, Vec<Expr>),
}

/// A member of a structure.
#[derive(Clone, PartialEq, Debug)]
pub struct Field {
    /// Name of the member, if given.
    pub name: Option<String>,
    /// Value of the member.
    pub value: Expr,
}

impl Expr {
    /// The member of a structure with this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Expr> {
        let Self::Struct(fields) = self else { return None };
        fields.iter().find(|f| f.name.as_deref() == Some(name)).map(|f| &f.value)
    }
}

/// The addresses of a script's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// Address of the stack.
    pub local: IpAddr,
    /// Address of the script's side.
    pub remote: IpAddr,
}
