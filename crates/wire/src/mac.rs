//! The Ethernet address (MAC address).

use core::fmt;
use core::str::FromStr;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address: all stations on the link.
    pub const BROADCAST: Self = Self([0xFF; 6]);
    /// All zeros: "not known" in an ARP request.
    pub const ZERO: Self = Self([0; 6]);

    /// True for the broadcast address.
    #[must_use]
    #[inline]
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF])
    }

    /// True for a group address; broadcast is a group address.
    #[must_use]
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for the address of one interface: not a group address, not all zeros.
    #[must_use]
    #[inline]
    pub const fn is_unicast(self) -> bool {
        !self.is_multicast() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

error_enum! {
    /// Why a text is not an Ethernet address.
    MacError {
        /// an Ethernet address is six two-digit hexadecimal numbers joined by colons, such as 02:00:00:00:00:01
        Malformed,
    }
}

impl FromStr for MacAddr {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or(MacError::Malformed)?;
            let is_hex = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            *octet =
                if is_hex { u8::from_str_radix(part, 16).ok() } else { None }.ok_or(MacError::Malformed)?;
        }
        if parts.next().is_some() { Err(MacError::Malformed) } else { Ok(Self(octets)) }
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::MacAddr;
    use std::string::ToString;

    #[test]
    fn text_round_trips_and_nonsense_is_refused() {
        let mac = MacAddr([0x02, 0, 0xAB, 0xCD, 0xEF, 0x01]);
        assert_eq!(mac.to_string(), "02:00:ab:cd:ef:01");
        assert_eq!("02:00:AB:cd:ef:01".parse(), Ok(mac));
        for bad in ["", "02", "02:00:ab:cd:ef", "02:00:ab:cd:ef:01:02", "2:0:ab:cd:ef:1", "+2:00:ab:cd:ef:01"]
        {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_of_address() {
        assert!(MacAddr::BROADCAST.is_broadcast() && MacAddr::BROADCAST.is_multicast());
        assert!(!MacAddr::ZERO.is_unicast());
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_unicast());
        assert!(MacAddr([1, 0, 0x5E, 0, 0, 1]).is_multicast());
    }
}
