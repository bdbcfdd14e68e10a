//! Initial sequence numbers (RFC 6528) and timestamp offsets: a secret function of both ends' addresses, plus a clock.

use base::{Instant, SeqNumber};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::net::IpAddr;
use wire::FourTuple;

/// The service's secret, drawn from the kernel's random numbers at start.
#[derive(Clone, Copy)]
pub struct Secret([u8; 16]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// What a hash is for: one secret serves several purposes.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Sequence = 1,
    Timestamp = 2,
    Port = 3,
    Cookie = 4,
    Share = 5,
}

impl Secret {
    /// A secret of 16 random bytes.
    #[must_use]
    pub const fn new(key: [u8; 16]) -> Self {
        Self(key)
    }

    /// "ISN = M + F(localip, localport, remoteip, remoteport, secretkey)", M "is a 4 microsecond timer" (RFC 6528
    /// section 3). `src` is our end.
    #[must_use]
    pub fn isn(&self, now: Instant, tuple: &FourTuple) -> SeqNumber {
        let m = (now.as_us() / 4) as u32;
        SeqNumber(m.wrapping_add(self.hash(Purpose::Sequence, tuple, true) as u32))
    }

    /// The offset of our timestamps to this peer. It does not depend on the ports, so that timestamps grow across connections between the
    /// same two hosts, as RFC 6191 needs; it is secret, so that timestamps do not tell our uptime (RFC 7323 section 7.1).
    #[must_use]
    pub fn timestamp_offset(&self, tuple: &FourTuple) -> u32 {
        self.hash(Purpose::Timestamp, tuple, false) as u32
    }

    /// A number that no peer can foresee, for that peer and that second. All addresses of an IPv6 network of 64 bits are one peer.
    pub(crate) fn share(&self, second: u32, peer: IpAddr) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write_u64(u64::from(second));
        hasher.write_u8(Purpose::Share as u8);
        match peer {
            IpAddr::V4(v4) => hasher.write(&v4.octets()),
            IpAddr::V6(v6) => hasher.write(&v6.octets()[..8]),
        }
        hasher.finish()
    }

    pub(crate) fn hash(&self, purpose: Purpose, tuple: &FourTuple, with_ports: bool) -> u64 {
        self.hash_with(purpose, tuple, with_ports, 0)
    }

    /// As `hash`, of a number as well.
    pub(crate) fn hash_with(
        &self,
        purpose: Purpose,
        tuple: &FourTuple,
        with_ports: bool,
        number: u64,
    ) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write_u64(number);
        hasher.write_u8(purpose as u8);
        for end in [tuple.src, tuple.dst] {
            match end.addr {
                IpAddr::V4(v4) => hasher.write(&v4.octets()),
                IpAddr::V6(v6) => hasher.write(&v6.octets()),
            }
            if with_ports {
                hasher.write_u16(end.port);
            }
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Endpoint;

    fn tuple(port: u16) -> FourTuple {
        let end = |a: [u8; 4], p| Endpoint::new(IpAddr::from(a), p);
        FourTuple::new(end([10, 0, 0, 2], port), end([10, 0, 0, 1], 80))
    }

    #[test]
    fn grows_by_one_each_four_microseconds() {
        let secret = Secret::new([7; 16]);
        let at = |us: u64| secret.isn(Instant::from_ns(us * 1000), &tuple(4000));
        assert_eq!(at(4_000_000).since(at(0)), 1_000_000);
    }

    #[test]
    fn differs_by_tuple_and_secret() {
        let isn = |key, port| Secret::new([key; 16]).isn(Instant::ZERO, &tuple(port));
        assert_ne!(isn(7, 4000), isn(7, 4001));
        assert_ne!(isn(7, 4000), isn(8, 4000));
        let offset = |port| Secret::new([7; 16]).timestamp_offset(&tuple(port));
        assert_eq!(offset(4000), offset(4001));
    }
}
