//! One window for all flows of a host's address (CCP paper, section 6.3 and Figure 7): Reno over the whole, divided by weights. A new flow has
//! its share at once.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ccp_agent::{
    Aggregate, Datapath, Duration, FlowInfo, FlowKey, Group, Instant, Outcome, Report, apportion,
};

use crate::{ROUND, is_used, named};

/// The aggregate, which flows choose as `aggregate`. Wrap it in [`ccp_agent::Aggregated`].
#[derive(Clone, Copy, Debug)]
pub struct BySource;

struct Member {
    datapath: Datapath,
    weight: u32,
    /// Its part of the window, bytes.
    part: u64,
}

/// The flows of one address.
pub struct Whole {
    members: BTreeMap<FlowKey, Member>,
    /// The window of all flows together.
    cwnd: f64,
    ssthresh: f64,
    mss: f64,
    rtt_us: u64,
    /// Losses before this time belong to the last reduction.
    recover_at: Instant,
}

impl Aggregate for BySource {
    type Key = Ipv4Addr;
    type Group = Whole;

    fn name(&self) -> &str {
        "aggregate"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![named("round", ROUND)]
    }

    fn aggregate_by(&self, info: &FlowInfo) -> Ipv4Addr {
        *info.source.ip()
    }

    fn create(&mut self, _key: &Ipv4Addr) -> Whole {
        Whole {
            members: BTreeMap::new(),
            cwnd: 0.0,
            ssthresh: f64::INFINITY,
            mss: 1.0,
            rtt_us: 100_000,
            recover_at: Instant::ZERO,
        }
    }
}

impl Whole {
    /// Gives each flow its share.
    fn share(&mut self) -> Outcome {
        let weights: Vec<u32> = self.members.values().map(|member| member.weight).collect();
        let parts = apportion(self.cwnd as u64, &weights);
        for (member, part) in self.members.values_mut().zip(parts) {
            member.part = part.max(self.mss as u64);
            member.datapath.update(&[("Cwnd", member.part), ("interval_us", self.rtt_us)])?;
        }
        Ok(())
    }

    fn lost(&mut self, now: Instant, is_timeout: bool) {
        if now < self.recover_at {
            return;
        }
        // A loss of one flow says that the path is full; it takes that flow's half, not the half of all.
        let flows = self.members.len().max(1) as f64;
        let floor = 2.0 * self.mss * flows;
        let kept = if is_timeout { 0.5 } else { 1.0 - 0.5 / flows };
        self.cwnd = (self.cwnd * kept).max(floor);
        self.ssthresh = self.cwnd;
        self.recover_at = now.plus(Duration::from_us(self.rtt_us));
    }
}

impl Group for Whole {
    fn create_subflow(&mut self, datapath: Datapath, info: &FlowInfo, weight: u32) -> Outcome {
        if self.members.is_empty() {
            self.cwnd = info.cwnd as f64;
            self.mss = info.mss as f64;
        }
        datapath.set_program("round", &[("interval_us", self.rtt_us)])?;
        self.members.insert(info.flow, Member { datapath, weight, part: 0 });
        self.share()
    }

    fn on_report(&mut self, flow: FlowKey, report: &Report) -> Outcome {
        let Some(member) = self.members.get(&flow) else { return Ok(()) };
        let (now, is_slow_start) = (member.datapath.now(), self.cwnd < self.ssthresh);
        let is_used = is_used(member.part, report.get("flight")?, self.mss as u64, is_slow_start);
        if report.get("rtt")? < 1_000_000 {
            self.rtt_us = report.get("rtt")?;
        }
        let acked = report.get("acked")? as f64;
        if report.get("lost")? > 0 {
            self.lost(now, report.get("timeout")? != 0);
        } else if is_used && is_slow_start {
            self.cwnd += acked;
        } else if is_used {
            // Each flow adds its segment for each of its windows, as so many Renos would.
            self.cwnd += self.mss * self.members.len() as f64 * acked / self.cwnd;
        }
        self.share()
    }

    fn close_subflow(&mut self, flow: FlowKey) {
        self.members.remove(&flow);
        // All others live, and have the program, so sharing cannot fail.
        let _ = self.share();
    }
}
