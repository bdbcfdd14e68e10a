//! Nimbus (Goyal and others, SIGCOMM 2022; CCP paper, section 6.1): pulses of the rate show whether others at the bottleneck react to them.
//! If they do, the flow competes as Reno does; if they do not, it keeps the queue short.

use std::collections::VecDeque;
use std::sync::Arc;

use ccp_agent::{Algorithm, Datapath, Duration, Failure, Flow, FlowInfo, Instant, Outcome, Report};
use rustfft::{Fft, FftPlanner};

use crate::elasticity::{INTERVAL_US, SAMPLES, Series, pulse};
use crate::named;

/// Samples of one pulse, over which means do not see it.
const PULSE_SAMPLES: usize = 20;
/// The first quarter of a pulse adds at most this part of the link; the rest takes a third of it away.
const AMPLITUDE: f64 = 0.25;
/// Others are elastic if the pulses' bin is so many times as high as any up to twice its frequency.
const ELASTIC: f64 = 2.0;
/// ... and swing by so much of the flow's own pulses. Others that do not react seem to swing by a third: the more regular they are, the clearer.
const ANSWER: f64 = 0.55;
/// Judgements in a row, ten a second, after which others that were elastic no longer are: a flow that cuts its window hides its answer to the pulses.
const CALM: u32 = 20;
/// Others that react have filled the queue: with less in it on average, microseconds, they do not. Without a queue bytes arrive as they were sent,
/// whatever others do, and what others seem to send is the rest of the link: it swings as the flow's own pulses do.
const FILLED_US: f64 = 3_000.0;
/// Rates are taken over so many reports: shorter than a quarter of a pulse.
const RATE_REPORTS: usize = 4;
/// Steps of the delay rule, and the queueing delay that it keeps, microseconds.
const ALPHA: f64 = 0.8;
const BETA: f64 = 0.5;
const QUEUE_US: f64 = 12_500.0;

/// The algorithm, which flows choose as `nimbus`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nimbus {
    /// The rate of the bottleneck, bytes per second; `None`: the largest rate of delivery so far.
    pub link: Option<u64>,
}

/// What had been acknowledged at a time, microseconds, and how long the last of it took.
#[derive(Clone, Copy, Debug)]
struct Mark {
    now: f64,
    rtt: f64,
    acked: f64,
}

struct NimbusFlow {
    datapath: Datapath,
    mss: f64,
    link: f64,
    transform: Arc<dyn Fft<f64>>,
    /// The last reports, the newest last.
    marks: VecDeque<Mark>,
    /// Rates of sending, and of other traffic as they show it.
    sent: Series,
    others: Series,
    /// What the queue adds to round trips.
    waits: Series,
    is_competing: bool,
    /// Judgements in a row by which others are inelastic.
    calm: u32,
    /// The rate without pulses.
    rate: f64,
    /// The window of the competing mode, and when a loss counts again.
    cwnd: f64,
    recover_at: Instant,
    rtt_min: f64,
    reports: usize,
    /// Until then acknowledgements stand still at a gap, or jump over it: they say nothing of rates.
    blind_until: Instant,
}

impl Algorithm for Nimbus {
    fn name(&self) -> &str {
        "nimbus"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![named("sums", include_str!("programs/sums.ccp"))]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("sums", &[("interval_us", INTERVAL_US)])?;
        let recover_at = datapath.now();
        Ok(Box::new(NimbusFlow {
            datapath,
            mss: info.mss as f64,
            link: self.link.unwrap_or(0) as f64,
            transform: FftPlanner::new().plan_fft_forward(SAMPLES),
            marks: VecDeque::new(),
            sent: Series::default(),
            others: Series::default(),
            waits: Series::default(),
            is_competing: true,
            calm: 0,
            rate: 10.0 * info.cwnd as f64,
            cwnd: info.cwnd as f64,
            recover_at,
            rtt_min: f64::INFINITY,
            reports: 0,
            blind_until: recover_at,
        }))
    }
}

impl NimbusFlow {
    /// The rate at which the bytes of the last reports arrived, and the rate at which they were sent: that took longer or shorter by as much
    /// as the round-trip time has grown or shrunk.
    fn rates(&mut self, now: f64, rtt: f64, acked: f64) -> Option<(f64, f64)> {
        let before = self.marks.back().map_or(0.0, |mark| mark.acked);
        self.marks.push_back(Mark { now, rtt, acked: before + acked });
        if self.marks.len() <= RATE_REPORTS {
            return None;
        }
        let first = self.marks.pop_front()?;
        let (bytes, time) = (before + acked - first.acked, now - first.now);
        let sending_time = time - (rtt - first.rtt);
        let is_good = time > 0.0 && sending_time > 0.0 && bytes > 0.0;
        is_good.then(|| (bytes * 1e6 / time, bytes * 1e6 / sending_time))
    }

    /// What others send, from the rates at which the same bytes were sent and arrived: they share the link in proportion.
    fn note(&mut self, now: f64, sent: f64, arrived: f64) {
        self.sent.note(now, sent);
        self.others.note(now, (self.link * sent / arrived - sent).clamp(0.0, self.link));
    }

    fn keep_delay(&mut self, rtt: f64) {
        let (sent, others) = (self.sent.mean(PULSE_SAMPLES), self.others.mean(PULSE_SAMPLES));
        let spare = ALPHA * (self.link - sent - others);
        let delay = BETA * self.link * (self.rtt_min + QUEUE_US - rtt) / rtt;
        self.rate = sent + spare + delay;
        self.cwnd = self.rate * rtt / 1e6;
    }

    fn compete(&mut self, now: Instant, acked: f64, lost: u64, rtt: f64) {
        if lost > 0 && now >= self.recover_at {
            self.cwnd /= 2.0;
            self.recover_at = now.plus(Duration::from_us(rtt as u64));
        } else if lost == 0 {
            self.cwnd += self.mss * acked / self.cwnd;
        }
        self.cwnd = self.cwnd.max(2.0 * self.mss);
        self.rate = self.cwnd * 1e6 / rtt;
    }

    fn choose_mode(&mut self) {
        let swing = |series: &Series| series.swing(self.transform.as_ref());
        let (Some(others), Some(own)) = (swing(&self.others), swing(&self.sent)) else { return };
        let (eta, answer) = (others.elasticity(), others.pulses / own.pulses);
        let is_filled = self.waits.mean(SAMPLES) >= FILLED_US;
        self.calm = if eta >= ELASTIC && answer >= ANSWER && is_filled { 0 } else { self.calm + 1 };
        let is_elastic = self.calm == 0 || self.is_competing && self.calm < CALM;
        if is_elastic != self.is_competing {
            let mode = if is_elastic { "others are elastic" } else { "others are inelastic" };
            self.datapath
                .note(mode, &[("eta_100", (eta * 100.0) as u64), ("answer_100", (answer * 100.0) as u64)]);
            self.is_competing = is_elastic;
        }
    }
}

impl Flow for NimbusFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        let (now, told) = (self.datapath.now(), report.get("now")? as f64);
        let (rtt, acked, lost) =
            (report.get("rtt")?.max(1) as f64, report.get("acked")? as f64, report.get("lost")?);
        self.rtt_min = self.rtt_min.min(rtt);
        if lost > 0 {
            self.blind_until = now.plus(Duration::from_us(2 * rtt as u64));
        }
        if now < self.blind_until {
            self.marks.clear();
        }
        if let Some((arrived, sent)) = self.rates(told, rtt, acked) {
            self.link = self.link.max(arrived);
            self.note(told, sent, arrived);
            self.waits.note(told, rtt - self.rtt_min);
        } else if self.link == 0.0 {
            return Ok(());
        }
        self.reports += 1;
        if self.reports.is_multiple_of(10) {
            self.choose_mode();
        }
        if self.is_competing {
            self.compete(now, acked, lost, rtt);
        } else {
            self.keep_delay(rtt);
        }
        self.rate = self.rate.clamp(0.2 * self.link, 1.5 * self.link);
        let rate = (self.rate + self.link * AMPLITUDE * pulse(now.as_us())).max(0.1 * self.link);
        // The rate decides; the window only bounds what is on the way.
        let cwnd = (2.0 * self.rate * rtt / 1e6).max(10.0 * self.mss);
        self.datapath.update(&[("Rate", rate as u64), ("Cwnd", cwnd as u64)])?;
        Ok(())
    }
}
