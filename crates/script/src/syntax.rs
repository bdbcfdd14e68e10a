//! What a script says, as a tree: nothing in here knows of a stack or of time that passes.

use std::net::IpAddr;

/// Microseconds of script time.
pub type Micros = i64;

/// Why a script cannot be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// The line it is about, counted from 1.
    pub line: u32,
    /// What kind it is of.
    pub kind: TroubleKind,
}

/// See [`Trouble`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TroubleKind {
    /// It is not in the language.
    Syntax(String),
    /// It is, but needs something that this runner or this stack does not have.
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

/// A whole script.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// `--name=value` at its top, without the dashes.
    pub options: Vec<OptionLine>,
    /// The shell command before the first event.
    pub start: Option<Command>,
    /// What happens, in order.
    pub events: Vec<Event>,
    /// The shell command after the last event.
    pub cleanup: Option<Command>,
}

/// `--name=value`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionLine {
    /// Where.
    pub line: u32,
    /// Without dashes.
    pub name: String,
    /// What follows the `=`.
    pub value: Option<String>,
}

/// Something in back quotes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Where it begins.
    pub line: u32,
    /// What a shell would run.
    pub text: String,
}

/// Something happens, or must happen, at a time.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Where.
    pub line: u32,
    /// When.
    pub when: When,
    /// What.
    pub action: Action,
}

/// When an event is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// `*`: whenever it comes.
    Any,
    /// Since the script began.
    At(Micros),
    /// `+T`: since the event before.
    After(Micros),
    /// `A~B`.
    Between(Micros, Micros),
    /// `+A~+B`.
    AfterBetween(Micros, Micros),
}

/// What happens.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// A packet goes to the stack or is expected from it.
    Packet(Packet),
    /// The application calls.
    Call(Call),
    /// A shell command.
    Command(String),
    /// Code between `%{` and `}%`.
    Code(String),
}

/// Which way a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// `<`: to the stack.
    In,
    /// `>`: from the stack.
    Out,
}

/// A packet.
#[derive(Clone, PartialEq, Debug)]
pub struct Packet {
    /// Which way it goes.
    pub direction: Direction,
    /// What is said of its IP header.
    pub ip: IpInfo,
    /// What is in it.
    pub body: Body,
}

/// `[ect0]`, `(tos 0x10)`, `(ttl 64)`, `(flowlabel 0x1)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpInfo {
    /// The traffic class's say.
    pub tos: Tos,
    /// Time to live or hop limit.
    pub ttl: Option<u8>,
    /// IPv6's flow label.
    pub flow_label: Option<u32>,
}

/// What is said of the byte with DSCP and ECN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tos {
    /// Nothing.
    #[default]
    Unsaid,
    /// The two ECN bits.
    Ecn(u8),
    /// `ect01`: ECT(0) or ECT(1).
    Ect01,
    /// All eight bits.
    Byte(u8),
}

/// What is in a packet.
#[derive(Clone, PartialEq, Debug)]
pub enum Body {
    /// A TCP segment.
    Tcp(Tcp),
    /// An ICMP message.
    Icmp(Icmp),
}

/// A TCP segment in script terms.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tcp {
    /// `source > destination` ports, where given.
    pub ports: Option<(u16, u16)>,
    /// FIN, SYN and so on, as in `wire::TcpFlags`.
    pub flags: u16,
    /// True when AE, CWR and ECE were written as one digit.
    pub has_ace: bool,
    /// First sequence number.
    pub seq: u32,
    /// Bytes of payload.
    pub len: u32,
    /// `ack N`.
    pub ack: Option<u32>,
    /// `win N`.
    pub window: Option<u16>,
    /// `urg N`.
    pub urgent: u16,
    /// The options; `None` is `<...>`.
    pub options: Option<Vec<TcpOption>>,
}

/// One TCP option, in the order and with the padding that is on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpOption {
    /// End of options, which pads.
    Eol,
    /// One byte of padding.
    Nop,
    /// Maximum segment size.
    Mss(u16),
    /// Shift of the window.
    WindowScale(u8),
    /// SACK permitted.
    SackOk,
    /// Selective acknowledgements: left and right edges.
    Sack(Vec<(u32, u32)>),
    /// Value and echo.
    Timestamps(u32, u32),
    /// Any other: kind and data.
    Other(u8, Vec<u8>),
}

/// An ICMP message in script terms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Icmp {
    /// The type's name, or `type_N`.
    pub kind: String,
    /// The code's name, or `code_N`.
    pub code: Option<String>,
    /// `mtu N`.
    pub mtu: Option<u32>,
    /// The quoted segment's first sequence number and length.
    pub quoted: Option<(u32, u32)>,
}

/// A call of the application.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub args: Vec<Expr>,
    /// When it returns, counted as [`When`] counts: a call that blocks.
    pub end: Option<Micros>,
    /// What it returns.
    pub result: Expr,
    /// The name of the error, where said.
    pub errno: Option<String>,
}

/// An argument.
#[derive(Clone, PartialEq, Debug)]
pub enum Expr {
    /// `...`
    Ellipsis,
    /// A number.
    Int(i64),
    /// A name.
    Word(String),
    /// Bytes in quotes.
    Text(Vec<u8>),
    /// `a | b`
    Or(Vec<Expr>),
    /// `[a, b]`
    List(Vec<Expr>),
    /// `{name = a, b}`
    Struct(Vec<Field>),
    /// `htons(80)`, `inet_addr("1.2.3.4")`
    Apply(String, Vec<Expr>),
}

/// A member of a structure.
#[derive(Clone, PartialEq, Debug)]
pub struct Field {
    /// Its name, where it has one.
    pub name: Option<String>,
    /// Its value.
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

/// Addresses of a script's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The stack's.
    pub local: IpAddr,
    /// The script's.
    pub remote: IpAddr,
}
