//! An IP address as two words of shared memory: the 16 bytes of an IPv6 address, little endian; an IPv4 address is v4-mapped.

use std::net::{IpAddr, Ipv6Addr};

/// Encodes an address as two words.
#[must_use]
pub fn address_to_words(ip: IpAddr) -> [u64; 2] {
    let octets = match ip {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    };
    let bits = u128::from_le_bytes(octets);
    [bits as u64, (bits >> 64) as u64]
}

/// The address that [`address_to_words`] has encoded; a v4-mapped one as the IPv4 address that it stands for.
#[must_use]
pub fn address_from_words([low, high]: [u64; 2]) -> IpAddr {
    let bits = u128::from(low) | u128::from(high) << 64;
    IpAddr::V6(Ipv6Addr::from(bits.to_le_bytes())).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_words() {
        for text in ["127.0.0.1", "::1", "fe80::1", "0.0.0.0"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(address_from_words(address_to_words(ip)), ip);
        }
    }
}
