//! Nimbus (Goyal and others, SIGCOMM 2022; CCP paper, section 6.1): pulses of the rate show whether others at the bottleneck react to them.
//! If they do, the flow competes as Reno does; if they do not, it keeps the queue short.
//!
//! Over the model of a path in this crate's tests the detector is right about inelastic others, and misses most elastic ones when they hold most
//! of the link: at a fifth of the link this flow's own rate is too coarse a measure. The paper's bar, nine of ten, is met on one side only.

use std::collections::VecDeque;
use std::f64::consts::PI;
use std::sync::Arc;

use ccp_agent::{Algorithm, Datapath, Duration, Failure, Flow, FlowInfo, Instant, Outcome, Report};
use rustfft::{Fft, FftPlanner};

use crate::elasticity::{SAMPLES, elasticity};
use crate::named;

/// Reports come this often, microseconds; each is one sample of the transform.
const INTERVAL_US: u64 = 10_000;
/// The number of pulses in a second.
const PULSES: f64 = 5.0;
/// Samples of one pulse, over which means do not see it.
const PULSE_SAMPLES: usize = 20;
/// The first quarter of a pulse adds at most this part of the link; the rest takes a third of it away.
const AMPLITUDE: f64 = 0.25;
/// Others are elastic if the pulses' bin is so many times as high as any up to twice its frequency.
const ELASTIC: f64 = 2.0;
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
    /// Rates of sending, and of other traffic as they show it, the newest last.
    sent: VecDeque<f64>,
    others: VecDeque<f64>,
    is_competing: bool,
    /// The rate without pulses.
    rate: f64,
    /// The window of the competing mode, and when a loss counts again.
    cwnd: f64,
    recover_at: Instant,
    rtt_min: f64,
    reports: usize,
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
            sent: VecDeque::new(),
            others: VecDeque::new(),
            is_competing: true,
            rate: 10.0 * info.cwnd as f64,
            cwnd: info.cwnd as f64,
            recover_at,
            rtt_min: f64::INFINITY,
            reports: 0,
        }))
    }
}

fn mean_of_pulse(samples: &VecDeque<f64>) -> f64 {
    let count = samples.len().clamp(1, PULSE_SAMPLES);
    samples.iter().rev().take(count).sum::<f64>() / count as f64
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
    fn note(&mut self, sent: f64, arrived: f64) {
        let others = (self.link * sent / arrived - sent).clamp(0.0, self.link);
        for (samples, sample) in [(&mut self.sent, sent), (&mut self.others, others)] {
            samples.push_back(sample);
            if samples.len() > SAMPLES {
                samples.pop_front();
            }
        }
    }

    fn keep_delay(&mut self, rtt: f64) {
        let (sent, others) = (mean_of_pulse(&self.sent), mean_of_pulse(&self.others));
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

    /// The asymmetric pulse: half a wave up in a quarter of its time, and a flatter one down in the rest.
    fn pulse(&self, now: Instant) -> f64 {
        let phase = (now.as_us() as f64 / 1e6 * PULSES).fract();
        let wave =
            if phase < 0.25 { (PI * phase / 0.25).sin() } else { -(PI * (phase - 0.25) / 0.75).sin() / 3.0 };
        self.link * AMPLITUDE * wave
    }

    fn choose_mode(&mut self) {
        let eta = elasticity(self.transform.as_ref(), &self.others);
        let is_elastic = eta >= ELASTIC;
        if is_elastic != self.is_competing {
            let mode = if is_elastic { "others are elastic" } else { "others are inelastic" };
            self.datapath.note(mode, &[("eta_100", (eta * 100.0) as u64)]);
            self.is_competing = is_elastic;
        }
    }
}

impl Flow for NimbusFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        let (now, rtt, acked) =
            (self.datapath.now(), report.get("rtt")?.max(1) as f64, report.get("acked")? as f64);
        self.rtt_min = self.rtt_min.min(rtt);
        let Some((arrived, sent)) = self.rates(report.get("now")? as f64, rtt, acked) else { return Ok(()) };
        self.link = self.link.max(arrived);
        self.note(sent, arrived);
        self.reports += 1;
        if self.reports.is_multiple_of(10) {
            self.choose_mode();
        }
        if self.is_competing {
            self.compete(now, acked, report.get("lost")?, rtt);
        } else {
            self.keep_delay(rtt);
        }
        self.rate = self.rate.clamp(0.2 * self.link, 1.5 * self.link);
        let rate = (self.rate + self.pulse(now)).max(0.1 * self.link);
        // The rate decides; the window only bounds what is on the way.
        let cwnd = (2.0 * self.rate * rtt / 1e6).max(10.0 * self.mss);
        self.datapath.update(&[("Rate", rate as u64), ("Cwnd", cwnd as u64)])?;
        Ok(())
    }
}
