use super::{Ipv6Error, UpperLayer, skip_extensions};
use crate::IpProtocol;

const TCP: u8 = IpProtocol::TCP.0;

#[test]
fn extension_headers_are_walked_or_refused() {
    let found = |offset| Ok(UpperLayer { protocol: IpProtocol::TCP, offset });
    let table: [(IpProtocol, &[u8], Result<UpperLayer, Ipv6Error>); 12] = [
        (IpProtocol::TCP, &[], found(0)),
        (IpProtocol::HOP_BY_HOP, &[TCP, 0, 5, 2, 0, 0, 1, 0], found(8)),
        (IpProtocol::HOP_BY_HOP, &[TCP, 1, 1, 4, 0, 0, 0, 0], Err(Ipv6Error::BadLength)),
        (IpProtocol::HOP_BY_HOP, &[TCP], Err(Ipv6Error::BadLength)),
        // An option that runs past the end of its header; an option that must be understood (jumbo payload).
        (IpProtocol::HOP_BY_HOP, &[TCP, 0, 5, 5, 0, 0, 0, 0], Err(Ipv6Error::BadLength)),
        (IpProtocol::HOP_BY_HOP, &[TCP, 0, 0xC2, 4, 0, 1, 0, 0], Err(Ipv6Error::UnsupportedExtension)),
        // Hop-by-hop options that are not the first header.
        (
            IpProtocol::DESTINATION_OPTIONS,
            &[0, 0, 1, 4, 0, 0, 0, 0, TCP, 0, 1, 4, 0, 0, 0, 0],
            Err(Ipv6Error::UnsupportedExtension),
        ),
        (IpProtocol::ROUTING, &[TCP, 0, 0, 0, 0, 0, 0, 0], found(8)),
        (IpProtocol::ROUTING, &[TCP, 0, 0, 1, 0, 0, 0, 0], Err(Ipv6Error::UnsupportedExtension)),
        (IpProtocol::FRAGMENT, &[TCP, 0, 0, 0, 1, 2, 3, 4], found(8)),
        (IpProtocol::FRAGMENT, &[TCP, 0, 0, 1, 1, 2, 3, 4], Err(Ipv6Error::Fragment)),
        (IpProtocol::FRAGMENT, &[TCP, 0, 1, 0, 1, 2, 3, 4], Err(Ipv6Error::Fragment)),
    ];
    for (first, payload, expected) in table {
        assert_eq!(skip_extensions(first, payload), expected, "{first:?} {payload:?}");
    }
}

#[test]
fn the_walk_is_bounded() {
    let mut payload = [0; 80];
    for header in payload.chunks_mut(8) {
        header.copy_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0]);
    }
    let result = skip_extensions(IpProtocol::DESTINATION_OPTIONS, &payload);
    assert_eq!(result, Err(Ipv6Error::TooManyExtensions));
}
