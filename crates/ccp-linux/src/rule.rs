//! Which live flows of the host are moved to the programs: rules as people write them, and as the kernel reads them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use serde::Serialize;

/// Rules of one bridge at most.
pub const RULES_MAX: usize = 16;
/// Bytes of a rule in the kernel: the peer's address, its bits u32, the port u32.
#[cfg(any(test, feature = "load"))]
pub(crate) const RULE_LEN: usize = 24;
/// Bits of an IPv6 address in front of an IPv4 address that is mapped into it.
const MAPPED_BITS: u8 = 96;

/// Flows to peers in a prefix, and with a port at either end; both parts must fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Rule {
    /// The peer's prefix; an IPv4 address is mapped into IPv6.
    peer: Ipv6Addr,
    bits: u8,
    /// The port at either end; 0: any.
    port: u16,
}

impl Rule {
    /// The rule that all flows fit.
    pub const ALL: Self = Self { peer: Ipv6Addr::UNSPECIFIED, bits: 0, port: 0 };

    /// The rule as the kernel's programs read it.
    #[cfg(any(test, feature = "load"))]
    pub(crate) fn encode(&self) -> [u8; RULE_LEN] {
        let mut bytes = [0; RULE_LEN];
        bytes[..16].copy_from_slice(&self.peer.octets());
        bytes[16..20].copy_from_slice(&u32::from(self.bits).to_ne_bytes());
        bytes[20..].copy_from_slice(&u32::from(self.port).to_ne_bytes());
        bytes
    }
}

/// A rule that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRule(String);

impl fmt::Display for BadRule {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "`{}` is no rule: all, port=443, to=10.0.0.0/8, to=fd00::/8,port=80", self.0)
    }
}

impl std::error::Error for BadRule {}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let bad = || BadRule(text.to_owned());
        if text == "all" {
            return Ok(Self::ALL);
        }
        let mut rule = Self::ALL;
        for part in text.split(',') {
            match part.split_once('=') {
                Some(("port", port)) => {
                    rule.port = port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?;
                }
                Some(("to", prefix)) => (rule.peer, rule.bits) = parse_prefix(prefix).ok_or_else(bad)?,
                _ => return Err(bad()),
            }
        }
        Ok(rule)
    }
}

fn parse_prefix(text: &str) -> Option<(Ipv6Addr, u8)> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let (most, before) = if address.is_ipv4() { (32, MAPPED_BITS) } else { (128, 0) };
    let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
    let mapped = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    (bits <= most).then_some((mapped, bits + before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_encoded() {
        let rule: Rule = "to=10.1.0.0/16,port=443".parse().expect("a rule");
        let bytes = rule.encode();
        assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 0, 0]);
        assert_eq!(bytes[16..20], 112_u32.to_ne_bytes());
        assert_eq!(bytes[20..], 443_u32.to_ne_bytes());
        assert_eq!("all".parse(), Ok(Rule::ALL));
        let host: Rule = "to=fd00::1".parse().expect("a rule");
        assert_eq!(host.encode()[16..20], 128_u32.to_ne_bytes());
    }

    #[test]
    fn nonsense_is_refused_with_examples() {
        for text in [
            "",
            "port=0",
            "port=70000",
            "to=10.0.0.0/33",
            "to=fd00::/129",
            "to=",
            "all,port=1",
            "from=1.2.3.4",
        ] {
            let why = text.parse::<Rule>().expect_err(text);
            assert!(why.to_string().contains("port=443"), "{why}");
        }
    }
}
