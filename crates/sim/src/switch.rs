//! A switch that learns: it sends a frame to the port where it has seen the destination, or to all others.

use std::collections::BTreeMap;

/// Ports are cables that leave the switch.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    ports: Vec<usize>,
    /// The port of each Ethernet address that has sent something.
    table: BTreeMap<[u8; 6], usize>,
}

impl Switch {
    pub(crate) fn add_port(&mut self, cable: usize) {
        self.ports.push(cable);
    }

    /// The ports by which a frame is sent on that came in by the twin of the cable `from`; the last of them last.
    pub(crate) fn ports_of(&mut self, frame: &[u8], from: usize) -> impl Iterator<Item = usize> + use<> {
        let addresses = (frame.first_chunk::<6>(), frame.get(6..12).and_then(|b| b.first_chunk::<6>()));
        let (known, flood) = match addresses {
            (Some(dst), Some(src)) => {
                if self.table.get(src) != Some(&from) {
                    self.table.insert(*src, from);
                }
                let known = self.table.get(dst).copied();
                (known, if known.is_none() { self.ports.clone() } else { Vec::new() })
            }
            _ => (None, Vec::new()),
        };
        known.into_iter().chain(flood.into_iter().filter(move |port| *port != from))
    }
}
