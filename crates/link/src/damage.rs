//! Changes that a link makes to the bytes of a frame.

use crate::model::View;
use wire::{Ecn, EtherType, EthernetHeader, checksum};

/// Changes to a frame's bytes, applied in the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Damage {
    /// The frame is marked CE.
    pub mark: bool,
    /// The byte at this offset is combined by exclusive or with this value, which is not 0.
    pub corrupt: Option<(usize, u8)>,
    /// The frame is cut to this length, which is less than it had.
    pub truncate: Option<usize>,
}

impl Damage {
    /// True if the frame is not changed.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        !self.mark && self.corrupt.is_none() && self.truncate.is_none()
    }
}

/// Applies `damage` to `frame` and returns its new length. Offsets outside the frame are ignored.
#[must_use]
pub fn apply(damage: &Damage, frame: &mut [u8]) -> usize {
    if damage.mark {
        // Only packets that `View` found ECN-capable are marked, so marking succeeds.
        mark_ce(frame);
    }
    if let Some((at, change)) = damage.corrupt
        && let Some(byte) = frame.get_mut(at)
    {
        *byte ^= change;
    }
    damage.truncate.map_or(frame.len(), |len| len.min(frame.len()))
}

/// The offset of the IP header, and whether it is IPv4.
fn ip_header(frame: &[u8]) -> Option<(usize, bool)> {
    let header = EthernetHeader::parse(frame).ok()?;
    match header.ethertype {
        EtherType::IPV4 => Some((header.header_len(), true)),
        EtherType::IPV6 => Some((header.header_len(), false)),
        _ => None,
    }
}

/// The ECN field of an IPv4 or IPv6 frame with at most one VLAN tag.
fn ecn(frame: &[u8]) -> Option<Ecn> {
    let (ip, v4) = ip_header(frame)?;
    let second = *frame.get(ip + 1)?;
    Some(Ecn::from_bits(if v4 { second } else { second >> 4 }))
}

/// Sets the ECN field of an IPv4 or IPv6 frame to CE and updates the IPv4 header checksum. Returns false, and changes nothing, if the frame
/// is not ECN-capable.
pub fn mark_ce(frame: &mut [u8]) -> bool {
    // RFC 3168 section 5: "the CE codepoint ... should only be set" on packets with an ECT codepoint; CE stays CE.
    if !matches!(ecn(frame), Some(Ecn::Ect0 | Ecn::Ect1 | Ecn::Ce)) {
        return false;
    }
    let Some((ip, v4)) = ip_header(frame) else { return false };
    let Some(header) = frame.get_mut(ip..) else { return false };
    if !v4 {
        header[1] |= Ecn::Ce.bits() << 4;
        return true;
    }
    let Some(fixed) = header.first_chunk_mut::<20>() else { return false };
    let old = u16::from_be_bytes([fixed[0], fixed[1]]);
    fixed[1] |= Ecn::Ce.bits();
    let new = u16::from_be_bytes([fixed[0], fixed[1]]);
    let sum = checksum::update_u16(u16::from_be_bytes([fixed[10], fixed[11]]), old, new);
    fixed[10..12].copy_from_slice(&sum.to_be_bytes());
    true
}

impl View {
    /// The properties of `frame` that the model needs.
    #[must_use]
    pub fn of(frame: &[u8]) -> Self {
        let header = EthernetHeader::parse(frame);
        let header_len = header.map_or(frame.len(), |header| header.header_len());
        let is_ect = matches!(ecn(frame), Some(Ecn::Ect0 | Ecn::Ect1 | Ecn::Ce));
        let is_arp = header.is_ok_and(|header| header.ethertype == EtherType::ARP);
        Self { len: frame.len(), header_len, is_ect, is_arp }
    }
}
