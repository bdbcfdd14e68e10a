//! Flows that wait for their turn to send, because they have more to send than one turn allows, or because the port or the pacer held
//! them back. Turns go round over the applications, in bytes (deficit round robin), and within an application over its flows: an
//! application with a thousand flows sends as much as one with a single flow, and `share` times what one with the share 1 sends. An
//! application that has used up its rate has no turns for a while. Sends nothing itself.
//!
//! ```text
//!   turns     application 3 ──► application 7 ──► application 1        the next turn is that of the first
//!                  │ credit 12 KiB
//!   flows     flow 9 ──► flow 2 ──► flow 40
//!   resting   application 4 until 12.5 ms
//!                  │
//!   flows     flow 8 ──► flow 6
//! ```

use crate::lists::{Ends, Links, List};
use base::Instant;

/// Bytes that a flow sends in one turn, at most a segment more, and by which the credit of an application grows: one super-frame.
pub(crate) const QUANTUM: u32 = 64 << 10;

/// The waiting flows of one application.
#[derive(Clone, Copy, Debug)]
struct Application {
    flows: Ends,
    /// Bytes that it may still send before the next application has its turn. Negative when its last flow has sent more.
    credit: i32,
    /// What the credit grows by, bytes.
    quantum: i32,
    /// It has no turns before this time; [`Instant::ZERO`]: it does not rest.
    rests_until: Instant,
}

impl Application {
    const NEW: Self =
        Self { flows: Ends::EMPTY, credit: 0, quantum: QUANTUM as i32, rests_until: Instant::ZERO };

    const fn is_resting(&self) -> bool {
        self.rests_until.as_ns() != 0
    }
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
    /// Regions of applications that rest.
    resting: Vec<u16>,
    /// When the first of them has turns again.
    first: Instant,
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
            applications: vec![Application::NEW; regions].into_boxed_slice(),
            turns: List::new(regions),
            resting: Vec::with_capacity(regions),
            first: Instant::NEVER,
            len: 0,
        }
    }

    /// True when the flow waits.
    #[inline]
    pub(crate) fn contains(&self, flow: u32) -> bool {
        self.links.contains(flow)
    }

    /// True when no flow waits for its turn: at most, flows of applications that rest do.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 || !self.resting.is_empty() && self.turns.front().is_none()
    }

    /// Prepares for the application of `region`, which is new: it gets `share` parts where others get one.
    pub(crate) fn admit(&mut self, region: u16, share: u16) {
        let Some(application) = self.applications.get_mut(usize::from(region)) else { return };
        application.credit = 0;
        application.quantum = (QUANTUM as i32).saturating_mul(i32::from(share.max(1)));
        application.rests_until = Instant::ZERO;
        self.resting.retain(|resting| *resting != region);
    }

    /// Lets the application of `region` have no turns before `until`.
    #[cold]
    pub(crate) fn rest(&mut self, region: u16, until: Instant) {
        let Some(application) = self.applications.get_mut(usize::from(region)) else { return };
        if !application.is_resting() {
            // Room is made for every region.
            self.resting.push(region);
            self.turns.remove(u32::from(region));
        }
        application.rests_until = until.max(Instant::from_ns(1));
        self.first = self.first.min(application.rests_until);
    }

    /// Gives those applications turns again that have rested long enough.
    #[inline]
    pub(crate) fn resume(&mut self, now: Instant) {
        if self.first <= now {
            self.resume_due(now);
        }
    }

    #[cold]
    fn resume_due(&mut self, now: Instant) {
        let Self { applications, turns, resting, .. } = self;
        self.first = Instant::NEVER;
        resting.retain(|region| {
            let application = &mut applications[usize::from(*region)];
            if application.rests_until > now {
                self.first = self.first.min(application.rests_until);
                return true;
            }
            application.rests_until = Instant::ZERO;
            if application.flows.first().is_some() {
                turns.push_back(u32::from(*region), 0);
            }
            false
        });
    }

    /// When an application has turns again.
    #[inline]
    pub(crate) const fn next_deadline(&self) -> Instant {
        self.first
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
            if !application.is_resting() {
                self.turns.push_back(u32::from(region), 0);
            }
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
                application.credit = application.credit.saturating_add(application.quantum);
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
        if application.credit > 0 && !is_empty || application.is_resting() {
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
    fn an_application_sends_in_proportion_to_its_share() {
        let mut backlog = Backlog::new(6, 3);
        [(0, 1), (1, 3), (2, 0)].into_iter().for_each(|(region, share)| backlog.admit(region, share));
        (0..6).for_each(|flow| backlog.push(flow, [0, 0, 0, 1, 1, 2][flow as usize]));
        let sent = serve(&mut backlog, 6, 1 << 28, |flow| if flow == 2 { 1448 } else { 65_160 });
        let (one, three, least) = (sent[..3].iter().sum::<u64>(), sent[3] + sent[4], sent[5]);
        assert!(three.abs_diff(3 * one) <= 4 * u64::from(QUANTUM), "{sent:?}");
        assert!(least.abs_diff(one) <= 2 * u64::from(QUANTUM), "{sent:?}");
    }

    #[test]
    fn an_application_that_rests_has_no_turn_and_then_goes_on_where_it_was() {
        let at = |us: u64| Instant::from_ns(us * 1000);
        let mut backlog = Backlog::new(4, 3);
        (0..3).for_each(|flow| backlog.push(flow, 0));
        backlog.push(3, 1);
        backlog.rest(0, at(50));
        backlog.rest(2, at(20));
        let turns = |backlog: &mut Backlog, now| {
            backlog.resume(at(now));
            let turn = backlog.next();
            if let Some(Turn { flow, region }) = turn {
                backlog.push(flow, region);
                backlog.charge(region, QUANTUM);
            }
            turn.map(|turn| turn.flow)
        };
        assert_eq!((turns(&mut backlog, 10), turns(&mut backlog, 30)), (Some(3), Some(3)));
        assert_eq!(backlog.next_deadline(), at(50));
        backlog.remove(3);
        assert!(backlog.is_empty() && backlog.len() == 3, "only flows wait whose application rests");
        backlog.remove(1);
        assert_eq!(
            (turns(&mut backlog, 49), turns(&mut backlog, 50), turns(&mut backlog, 51)),
            (None, Some(0), Some(2))
        );
        assert_eq!(backlog.next_deadline(), Instant::NEVER);
        backlog.rest(0, at(90));
        assert_eq!(turns(&mut backlog, 60), None);
        backlog.admit(0, 1);
        backlog.push(1, 0);
        backlog.remove(0);
        backlog.remove(2);
        assert_eq!(turns(&mut backlog, 61), Some(1), "a new application in that region does not rest");
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
