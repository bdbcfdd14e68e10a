//! Finds what a script needs and the runner or the stack lacks, before it runs: half a run proves nothing.

use crate::symbols;
use crate::syntax::{Action, Call, Expr, Script, Trouble};

/// Calls that `crate::runner` supports.
const CALLS: [&str; 27] = [
    "accept",
    "bind",
    "close",
    "connect",
    "epoll_create",
    "epoll_ctl",
    "epoll_wait",
    "fcntl",
    "getsockopt",
    "ioctl",
    "listen",
    "open",
    "poll",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmsg",
    "send",
    "sendfile",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socket",
    "write",
    "writev",
];

/// Words that need a feature that the stack lacks.
const WORDS: [(&str, &str); 15] = [
    ("MSG_FASTOPEN", "TCP fast open"),
    ("TCP_FASTOPEN", "TCP fast open"),
    ("TCP_FASTOPEN_CONNECT", "TCP fast open"),
    ("TCP_FASTOPEN_KEY", "TCP fast open"),
    ("TCP_FASTOPEN_NO_COOKIE", "TCP fast open"),
    ("MSG_ZEROCOPY", "sending without copies (MSG_ZEROCOPY)"),
    ("SO_ZEROCOPY", "sending without copies (MSG_ZEROCOPY)"),
    ("MSG_ERRQUEUE", "the error queue (MSG_ERRQUEUE)"),
    ("SO_TIMESTAMPING", "time stamps of packets (SO_TIMESTAMPING)"),
    ("TCP_MD5SIG", "TCP MD5 signatures"),
    ("TCP_TX_DELAY", "TCP_TX_DELAY"),
    ("AF_UNSPEC", "dissolving a connection (AF_UNSPEC)"),
    ("SOCK_DGRAM", "sockets that are not TCP's"),
    ("SOCK_RAW", "sockets that are not TCP's"),
    ("IPPROTO_UDP", "sockets that are not TCP's"),
];

/// Returns the first unsupported call, error name or word.
pub(crate) fn check(script: &Script) -> Result<(), Trouble> {
    for event in &script.events {
        let Action::Call(call) = &event.action else { continue };
        if let Err(what) = check_call(call) {
            return Err(Trouble::unsupported(event.line, what));
        }
    }
    Ok(())
}

fn check_call(call: &Call) -> Result<(), String> {
    if !CALLS.contains(&call.name.as_str()) {
        return Err(format!("the call {}", call.name));
    }
    if let Some(name) = &call.errno
        && symbols::errno(name).is_none()
    {
        return Err(format!("the error {name}"));
    }
    call.args.iter().try_for_each(check_expr)
}

fn check_expr(expr: &Expr) -> Result<(), String> {
    match expr {
        Expr::Word(word) => match WORDS.iter().find(|(name, _)| name == word) {
            Some((_, what)) => Err((*what).to_owned()),
            None => Ok(()),
        },
        Expr::Or(items) | Expr::List(items) | Expr::Apply(_, items) => items.iter().try_for_each(check_expr),
        Expr::Struct(fields) => fields.iter().try_for_each(|field| check_expr(&field.value)),
        Expr::Ellipsis | Expr::Int(_) | Expr::Text(_) => Ok(()),
    }
}
