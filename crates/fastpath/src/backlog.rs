//! Flows that wait for their turn to send, because they have more to send than one turn allows, or because the port or the pacer held
//! them back. Turns go round over the applications, in bytes (deficit round robin), and within an application over its flows: an
//! application with a thousand flows sends as much as one with a single flow. Sends nothing itself.
//!
//! ```text
//!   turns     application 3 ──► application 7 ──► application 1        the next turn is that of the first
//!                  │ credit 12 KiB
//!   flows     flow 9 ──► flow 2 ──► flow 40
//! ```

use crate::lists::{Ends, Links, List};

/// Bytes that a flow sends in one turn, at most a segment more, and by which the credit of an application grows: one super-frame.
pub(crate) const QUANTUM: u32 = 64 << 10;

/// The waiting flows of one application.
#[derive(Clone, Copy, Debug)]
struct Application {
    flows: Ends,
    /// Bytes that it may still send before the next application has its turn. Negative when its last flow has sent more.
    credit: i32,
}

/// All waiting flows of a core.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// The value of a flow is the index of its application's region.
    links: Links,
    /// By index of the region.
    applications: Box<[Application]>,
    /// Regions of applications with waiting flows, in the order of their turns.
    turns: List,
    len: u32,
}

/// The flow that may send now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    pub(crate) flow: u32,
    /// Index of its application's region.
    pub(crate) region: u16,
}

impl Backlog {
    // SETUP: made with the core.
    pub(crate) fn new(flows: usize, regions: usize) -> Self {
        Self {
            links: Links::new(flows),
            applications: vec![Application { flows: Ends::EMPTY, credit: 0 }; regions].into_boxed_slice(),
            turns: List::new(regions),
            len: 0,
        }
    }

    /// True when the flow waits.
    #[inline]
    pub(crate) fn contains(&self, flow: u32) -> bool {
        self.links.contains(flow)
    }

    /// True when no flow waits.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of flows that wait.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Adds a flow behind the others of its application, unless it waits already.
    pub(crate) fn push(&mut self, flow: u32, region: u16) {
        let Some(application) = self.applications.get_mut(usize::from(region)) else { return };
        if !self.links.contains(flow) {
            self.links.push_back(&mut application.flows, flow, u64::from(region));
            self.turns.push_back(u32::from(region), 0);
            self.len += 1;
        }
    }

    /// Takes a flow out, if it waits.
    pub(crate) fn remove(&mut self, flow: u32) {
        let region = self.links.value(flow) as usize;
        let Some(application) = self.applications.get_mut(region) else { return };
        if self.links.remove(&mut application.flows, flow) {
            self.len -= 1;
            if application.flows.first().is_none() {
                self.turns.remove(region as u32);
            }
        }
    }

    /// Takes out the flow that may send now. When it has sent, and waits again if it has more, the caller calls [`charge`](Self::charge).
    pub(crate) fn next(&mut self) -> Option<Turn> {
        loop {
            let (region, _) = self.turns.front()?;
            let application = &mut self.applications[region as usize];
            if application.credit <= 0 {
                application.credit += QUANTUM as i32;
            }
            if application.credit <= 0 {
                self.turns.remove(region);
                self.turns.push_back(region, 0);
                continue;
            }
            let flow = application.flows.first()?;
            self.links.remove(&mut application.flows, flow);
            self.len -= 1;
            return Some(Turn { flow, region: region as u16 });
        }
    }

    /// Notes that a flow of the application of `region` has sent `bytes` in its turn. The turn of the application is over when its credit
    /// is used up, or none of its flows waits.
    pub(crate) fn charge(&mut self, region: u16, bytes: u32) {
        let Some(application) = self.applications.get_mut(usize::from(region)) else { return };
        application.credit = application.credit.saturating_sub_unsigned(bytes);
        let is_empty = application.flows.first().is_none();
        if application.credit > 0 && !is_empty {
            return;
        }
        let region = u32::from(region);
        self.turns.remove(region);
        if is_empty {
            application.credit = application.credit.min(0);
        } else {
            self.turns.push_back(region, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seed;

    /// Serves turns until `total` bytes are sent; each flow sends `bytes` in a turn, and always has more. Returns the bytes of each flow.
    fn serve(backlog: &mut Backlog, flows: usize, total: u64, bytes: impl Fn(u32) -> u32) -> Vec<u64> {
        let mut sent = vec![0; flows];
        while sent.iter().sum::<u64>() < total {
            let turn = backlog.next().unwrap();
            let bytes = bytes(turn.flow);
            sent[turn.flow as usize] += u64::from(bytes);
            backlog.push(turn.flow, turn.region);
            backlog.charge(turn.region, bytes);
        }
        sent
    }

    #[test]
    fn an_application_with_many_flows_sends_as_much_as_one_with_a_single_flow() {
        let mut backlog = Backlog::new(1001, 2);
        (0..1000).for_each(|flow| backlog.push(flow, 0));
        backlog.push(1000, 1);
        // The flows of the first send whole super-frames, that of the second single segments.
        let sent = serve(&mut backlog, 1001, 1 << 30, |flow| if flow == 1000 { 1448 } else { 65_160 });
        let (many, one) = (sent[..1000].iter().sum::<u64>(), sent[1000]);
        assert!(many.abs_diff(one) <= 2 * u64::from(QUANTUM), "{many} {one}");
        let (least, most) = (sent[..1000].iter().min().unwrap(), sent[..1000].iter().max().unwrap());
        assert!(most - least <= 2 * u64::from(QUANTUM), "{least} {most}");
    }

    #[test]
    fn each_flow_that_waits_has_a_turn_and_no_other_has() {
        let (flows, regions) = (64, 5);
        let (mut backlog, mut rng) = (Backlog::new(flows, regions), Seed::new(3));
        let mut waits = vec![None; flows];
        for _ in 0..100_000 {
            let flow = rng.below(flows as u64) as u32;
            match rng.below(4) {
                0 | 1 => {
                    let region = rng.below(regions as u64) as u16;
                    backlog.push(flow, region);
                    waits[flow as usize].get_or_insert(region);
                }
                2 => {
                    backlog.remove(flow);
                    waits[flow as usize] = None;
                }
                _ => match backlog.next() {
                    Some(turn) => {
                        assert_eq!(waits[turn.flow as usize].take(), Some(turn.region));
                        backlog.charge(turn.region, rng.below(100_000) as u32);
                    }
                    None => assert!(waits.iter().all(Option::is_none)),
                },
            }
            assert_eq!(backlog.len() as usize, waits.iter().flatten().count());
            assert_eq!(backlog.is_empty(), waits.iter().all(Option::is_none));
            assert!((0..flows as u32).all(|f| backlog.contains(f) == waits[f as usize].is_some()));
        }
    }

    #[test]
    fn regions_that_do_not_exist_are_ignored() {
        let mut backlog = Backlog::new(4, 1);
        backlog.push(0, 7);
        backlog.charge(7, 1);
        assert!(backlog.is_empty() && backlog.next().is_none());
    }
}
