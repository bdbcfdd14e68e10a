//! What a reader asks about: a process, by number or name, or sockets, by their addresses.

use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Most bytes of a process's name: the kernel keeps no more (`TASK_COMM_LEN`, without its end).
pub const COMM_MAX: usize = 15;

/// One end of a socket: an address with its port, or a port alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Address(SocketAddr),
    Port(u16),
}

impl FromStr for End {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let port = text.strip_prefix(':').map(str::parse).and_then(Result::ok).map(Self::Port);
        let address = || text.parse().ok().map(Self::Address);
        port.or_else(address)
            .ok_or_else(|| format!("`{text}` is no address like 10.0.0.1:80, [::1]:80 or :80"))
    }
}

impl End {
    fn is(self, text: &Value) -> bool {
        let parsed: Option<SocketAddr> = text.as_str().and_then(|text| text.parse().ok());
        parsed.is_some_and(|address| match self {
            Self::Address(wanted) => wanted == address,
            Self::Port(port) => port == address.port(),
        })
    }
}

/// Selects processes or sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Process(i32),
    /// Processes with this name.
    Name(String),
    /// Sockets with this address or port at either end.
    Either(End),
    /// Sockets with this local end and this remote end.
    Both(End, End),
}

impl FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(pid) = text.parse() {
            return Ok(Self::Process(pid));
        }
        // A name may have hyphens, and hardly a colon.
        match text.split_once('-') {
            Some((own, peer)) if text.contains(':') => Ok(Self::Both(own.parse()?, peer.parse()?)),
            _ if text.contains(':') => Ok(Self::Either(text.parse()?)),
            _ if text.is_empty() || text.parse::<IpAddr>().is_ok() => Err(format!(
                "`{text}` is neither a process (number or name) nor an address with a port, like 10.0.0.1:80 or :80"
            )),
            _ => Ok(Self::Name(text.to_owned())),
        }
    }
}

impl Target {
    /// True if this selects the socket of a row: by the socket's ends, or by its process.
    pub fn is(&self, row: &Value) -> bool {
        match self {
            Self::Process(pid) => row["pid"] == *pid,
            Self::Name(name) => row["process"].as_str() == Some(shortened(name)),
            Self::Either(end) => end.is(&row["local"]) || end.is(&row["remote"]),
            Self::Both(own, peer) => own.is(&row["local"]) && peer.is(&row["remote"]),
        }
    }
}

/// A program's name as the kernel keeps it.
pub fn shortened(name: &str) -> &str {
    let mut end = name.len().min(COMM_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn targets_read_as_they_are_meant() {
        let target = |text: &str| text.parse::<Target>();
        assert_eq!(target("4711"), Ok(Target::Process(4711)));
        assert_eq!(target(":80"), Ok(Target::Either(End::Port(80))));
        let one: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!(target("[::1]:80"), Ok(Target::Either(End::Address(one))));
        let both = Target::Both(End::Address("10.0.0.2:4".parse().unwrap()), End::Port(80));
        assert_eq!(target("10.0.0.2:4-:80"), Ok(both.clone()));
        for name in ["redis", "redis-server", "nginx", "python3.13", "a-b-c"] {
            assert_eq!(target(name), Ok(Target::Name(name.to_owned())));
        }
        for bad in ["", ":", ":99999", "10.0.0.1", "::1", "10.0.0.1:80-", "1.2.3.4:5-6", "localhost:80"] {
            assert!(target(bad).is_err(), "{bad}");
        }
        let row = json!({ "local": "10.0.0.2:4", "remote": "10.0.0.1:80" });
        assert!(both.is(&row) && target(":80").unwrap().is(&row) && target("10.0.0.2:4").unwrap().is(&row));
        assert!(!target("10.0.0.1:80-10.0.0.2:4").unwrap().is(&row) && !target(":81").unwrap().is(&row));
        assert!(!target(":80").unwrap().is(&json!({ "local": "-", "remote": "*" })));
    }

    #[test]
    fn a_process_selects_its_sockets_by_number_and_by_the_name_that_the_kernel_keeps() {
        let row = json!({ "pid": 7, "process": "redis-benchmark" });
        let is = |text: &str| text.parse::<Target>().unwrap().is(&row);
        assert!(is("7") && is("redis-benchmark") && is("redis-benchmark-of-mine"));
        assert!(!is("8") && !is("redis"));
        assert!(
            !"0".parse::<Target>().unwrap().is(&json!({ "pid": null, "process": null })),
            "a hidden process"
        );
    }
}
