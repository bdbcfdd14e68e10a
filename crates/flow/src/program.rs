//! The program that steers a flow, with all that belongs to it: registers, samples, what has happened since its last run, and the report
//! that is due. A flow's record owns it ([`Cold::program`](crate::Cold)); so it goes wherever the record goes, and is changed only under the
//! record's lock. It runs the program and enforces nothing itself.
//!
//! ```text
//!   core: on_ack, on_news, on_timeout, on_tick ---> [ gathered ] --run, once per flow and batch--> Decision
//!   core: sent --> [ Sampler ] --sample-----------------^       \--> report due --> slow path: report, report_taken
//! ```

use crate::rate_sample::{Delivery, Sampler, Sending};
use base::SeqNumber;
use ccp_vm::{Bounds, Changes, Decision, Machine, Primitive, Program, Reads};
use std::sync::Arc;

/// Microseconds: the resolution of round-trip times on short paths; on others it is a 64th of a round trip.
const RESOLUTION_US_MIN: u32 = 50;

/// A program that begins to steer a flow.
#[derive(Clone, Debug)]
pub struct Start {
    /// What runs from now on.
    pub program: Arc<Program>,
    /// A number that comes back with each report: the agent's own of the program.
    pub number: u32,
    /// What the program's decisions are moved into.
    pub bounds: Bounds,
    /// What is set once the program has begun.
    pub changes: Changes,
}

/// The state of a flow at a run of its program.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// Time, microseconds; modulo 2^32 it is that of all other calls.
    pub now_us: u64,
    /// Bytes acknowledged since the flow began.
    pub acked: u64,
    /// Bytes delivered: acknowledged, and selectively acknowledged beyond that.
    pub delivered: u64,
    /// Bytes that counted as lost, a byte as often as it did, modulo 2^32.
    pub lost: u32,
    /// Bytes in the network, as far as is known (RFC 6675, pipe).
    pub pipe: u32,
    /// Bytes that the application has written and that were never sent.
    pub pending: u64,
    /// The oldest sequence number not acknowledged.
    pub una: SeqNumber,
    /// Bytes of payload of a full segment.
    pub mss: u16,
    /// The congestion window, bytes.
    pub cwnd: u32,
}

/// What has happened since the last run.
#[derive(Clone, Copy, Debug, Default)]
struct Gathered {
    marked: u64,
    misordered: u64,
    /// The [`Delivery::newest`] of all deliveries since the last run.
    newest: Option<SeqNumber>,
    was_timeout: bool,
    is_any: bool,
    /// Nothing but a tick has come.
    is_tick: bool,
}

/// What an acknowledgement says of congestion marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Echo {
    /// The acknowledgement says nothing of marks.
    None,
    /// All that it acknowledges counts as marked (ECE).
    All,
    /// The peer has counted marked packets of so many bytes that were not told before (accurate ECN).
    Bytes(u32),
}

/// Signals of which each run draws a sample from the marks of what was sent.
const SAMPLED: Reads = Reads::of(&[Primitive::RttSample, Primitive::RateIncoming, Primitive::RateOutgoing]);
/// Signals that count segments, but for those lost.
const COUNTED: Reads = Reads::of(&[
    Primitive::PacketsAcked,
    Primitive::PacketsMisordered,
    Primitive::EcnPackets,
    Primitive::PacketsInFlight,
]);

/// Counts segments in bytes: the last one counted may have room for bytes of the next count.
#[derive(Clone, Copy, Debug, Default)]
struct Segments {
    room: u32,
}

impl Segments {
    #[inline]
    fn count(&mut self, bytes: u64, mss: u16) -> u64 {
        if bytes <= u64::from(self.room) {
            self.room -= bytes as u32;
            return 0;
        }
        if self.room == 0 && bytes == u64::from(mss) {
            return 1;
        }
        let (bytes, mss) = (bytes - u64::from(self.room), u64::from(mss.max(1)));
        let count = bytes.div_ceil(mss);
        self.room = (count * mss - bytes) as u32;
        count
    }
}

/// The program of one flow.
#[derive(Debug)]
pub struct FlowProgram {
    program: Arc<Program>,
    number: u32,
    /// The signals that the program reads: no others are computed, and without [`SAMPLED`] ones no marks are kept.
    reads: Reads,
    bounds: Bounds,
    machine: Machine,
    /// The pacing rate that was decided on, bytes per second; 0: none.
    rate: u64,
    sampler: Sampler,
    gathered: Gathered,
    /// [`Situation::acked`] at the last acknowledgement, and at the last run.
    acked: [u64; 2],
    /// [`Situation::lost`] at the last run.
    lost: u32,
    counts: [Segments; 4],
    ran_us: u64,
    /// While data with marks may be acknowledged: the end of the window in which an echo of congestion was answered last.
    echo_end: Option<SeqNumber>,
    /// The acknowledgement that is being taken in has been through [`on_news`](Self::on_news).
    is_news_taken: bool,
    is_announced: bool,
    /// The mark of the last sample: the application had too little to send while it was taken.
    is_app_limited: bool,
    /// Number of ticks in a row, the last runs, before which nothing had come.
    ticks: u8,
    clamps: u64,
    runs: u64,
}

impl FlowProgram {
    /// A program that begins with a flow in this state, without a rate; `snd_max` is the end of the data sent.
    #[must_use]
    pub fn new(start: &Start, at: &Situation, snd_max: SeqNumber) -> Self {
        Self {
            program: start.program.clone(),
            number: start.number,
            reads: start.program.reads(),
            bounds: start.bounds,
            machine: Machine::new(&start.program, at.now_us),
            rate: 0,
            sampler: Sampler::new(snd_max, at.delivered as u32, at.now_us as u32),
            gathered: Gathered::default(),
            acked: [at.acked; 2],
            lost: at.lost,
            counts: [Segments::default(); 4],
            ran_us: at.now_us,
            echo_end: None,
            is_news_taken: false,
            is_announced: false,
            is_app_limited: false,
            ticks: 0,
            clamps: 0,
            runs: 0,
        }
    }

    /// Another program begins in place of this one. What has happened and was not shown to this one is shown to the new one; a report that
    /// is due is dropped, because it is of no use to an agent that has changed the program.
    pub fn replace(&mut self, start: &Start, at: &Situation, snd_max: SeqNumber) {
        self.machine.start(&start.program, at.now_us);
        let reads = start.program.reads();
        if reads.has_any(SAMPLED) && !self.reads.has_any(SAMPLED) {
            self.sampler = Sampler::new(snd_max, at.delivered as u32, at.now_us as u32);
        }
        self.reads = reads;
        self.program = start.program.clone();
        (self.number, self.bounds) = (start.number, start.bounds);
        self.is_announced = false;
    }

    /// Sets control variables, and the rate; the window is the flow's.
    pub fn change(&mut self, changes: &Changes) {
        self.machine.change(changes);
        self.rate = changes.rate.unwrap_or(self.rate);
    }

    /// The pacing rate that was decided on, bytes per second; 0: none.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// The agent's number of the program.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// When the program ran last, microseconds.
    #[must_use]
    pub const fn ran_us(&self) -> u64 {
        self.ran_us
    }

    /// Number of ticks in a row, the last runs, before which nothing had come.
    #[must_use]
    pub const fn ticks(&self) -> u8 {
        self.ticks
    }

    /// True if the application had too little to send while the last sample was taken, so that the path may be faster than its rates; `None` of a
    /// program that reads no samples.
    #[must_use]
    pub fn is_app_limited(&self) -> Option<bool> {
        self.reads.has_any(SAMPLED).then_some(self.is_app_limited)
    }

    /// Bytes acknowledged with an echo of congestion since the last run.
    #[must_use]
    pub const fn marked(&self) -> u64 {
        self.gathered.marked
    }

    /// Number of runs, of runs that a fault has stopped, and of decisions that were moved to a bound.
    #[must_use]
    pub const fn totals(&self) -> (u64, u32, u64) {
        (self.runs, self.machine.faults(), self.clamps)
    }

    /// The control variables and, behind them, the report variables, as they are now.
    #[must_use]
    pub fn variables(&self) -> &[u64] {
        self.machine.variables()
    }

    /// An acknowledgement has advanced `snd_una` to `una`, so that `acked` bytes are acknowledged in all. True: it echoes congestion for
    /// the first time in this window of data, and the next new segment is to carry CWR (RFC 3168 section 6.1.2): what is decided about
    /// the window is the program's business.
    #[inline]
    pub fn on_ack(&mut self, una: SeqNumber, acked: u64, snd_max: SeqNumber, echo: Echo) -> bool {
        let bytes = acked.wrapping_sub(self.acked[0]);
        self.acked[0] = acked;
        self.gathered.is_any = true;
        if !self.is_news_taken && bytes > 0 {
            // All that was acknowledged was sent once.
            self.gathered.newest = Some(self.gathered.newest.map_or(una, |newest| newest.later_of(una)));
        }
        match echo {
            Echo::None => false,
            Echo::All => self.echo(una, bytes, snd_max),
            Echo::Bytes(marked) => self.echo(una, u64::from(marked), snd_max),
        }
    }

    #[cold]
    fn echo(&mut self, una: SeqNumber, marked: u64, snd_max: SeqNumber) -> bool {
        self.gathered.marked += marked;
        let is_new = self.echo_end.is_none_or(|end| end.is_at_or_before(una));
        if is_new {
            self.echo_end = Some(snd_max);
        }
        is_new
    }

    /// An acknowledgement of a flow with losses or gaps begins to be taken in: `misordered` bytes were newly reported by SACK (or stand for a
    /// duplicate acknowledgement), and the data that ends at `newest` is the latest sent of what was delivered and sent once.
    #[cold]
    pub fn on_news(&mut self, misordered: u32, newest: Option<SeqNumber>) {
        let gathered = &mut self.gathered;
        gathered.is_any = true;
        gathered.misordered += u64::from(misordered);
        gathered.newest = match (gathered.newest, newest) {
            (Some(a), Some(b)) => Some(a.later_of(b)),
            (a, b) => a.or(b),
        };
        self.is_news_taken = true;
    }

    /// The acknowledgement is taken in.
    pub const fn news_end(&mut self) {
        self.is_news_taken = false;
    }

    /// The retransmission timer expired.
    pub const fn on_timeout(&mut self) {
        (self.gathered.was_timeout, self.gathered.is_any) = (true, true);
    }

    /// Nothing has come for a while: the program runs, so that its conditions about time come true.
    pub const fn on_tick(&mut self) {
        (self.gathered.is_tick, self.gathered.is_any) = (!self.gathered.is_any, true);
    }

    /// Data that counted as lost, by `bytes`, was no loss of the network: segments were too large for the path.
    pub const fn forgive(&mut self, bytes: u32) {
        self.lost = self.lost.wrapping_add(bytes);
    }

    /// New data is sent; of `sending` the resolution is computed here, from the smoothed round-trip time.
    #[inline]
    pub fn sent(&mut self, sending: Sending, srtt_us: u32) {
        if !self.reads.has_any(SAMPLED) {
            return;
        }
        let resolution_us = (srtt_us / 64).max(RESOLUTION_US_MIN);
        self.sampler.sent(&Sending { resolution_us, ..sending });
    }

    /// The application has sent less than it could: tells the sampler, see [`Sampler::limit`].
    pub fn limit(&mut self, outstanding: u32) {
        self.sampler.limit(outstanding);
    }

    /// True if anything has happened since the last run; `lost` is [`Situation::lost`].
    #[inline]
    #[must_use]
    pub const fn is_due(&self, lost: u32) -> bool {
        self.gathered.is_any || self.lost != lost
    }

    /// Runs the program once. `None`: a fault stopped it, and nothing changes.
    pub fn run(&mut self, at: &Situation) -> Option<Decision> {
        self.ticks = if self.gathered.is_tick { self.ticks.saturating_add(1) } else { 0 };
        self.load(at);
        self.ran_us = at.now_us;
        self.runs += 1;
        let wanted = self.machine.run_loaded(&self.program, u64::from(at.cwnd), self.rate).ok()?;
        let decision = self.bounds.apply(wanted);
        self.clamps += u64::from(decision != wanted);
        self.rate = decision.rate;
        Some(decision)
    }

    /// Puts the signals since the last run, as far as the program reads them, into its registers. They begin anew.
    #[inline]
    fn load(&mut self, at: &Situation) {
        let signals = self.machine.signals();
        let mut set = |signal: Primitive, value: u64| signals[signal as usize] = value;
        let gathered = &mut self.gathered;
        let acked = at.acked - self.acked[1];
        let lost = at.lost.wrapping_sub(self.lost);
        set(Primitive::BytesAcked, acked);
        set(Primitive::BytesMisordered, gathered.misordered);
        set(Primitive::EcnBytes, gathered.marked);
        set(Primitive::LostPackets, self.counts[0].count(u64::from(lost), at.mss));
        set(Primitive::Now, at.now_us);
        set(Primitive::BytesInFlight, u64::from(at.pipe));
        set(Primitive::BytesPending, at.pending);
        set(Primitive::WasTimeout, u64::from(gathered.was_timeout));
        if self.reads.has_any(COUNTED) {
            let [_, in_order, misordered, marked] = &mut self.counts;
            set(Primitive::PacketsAcked, in_order.count(acked, at.mss));
            set(Primitive::PacketsMisordered, misordered.count(gathered.misordered, at.mss));
            set(Primitive::EcnPackets, marked.count(gathered.marked, at.mss));
            set(Primitive::PacketsInFlight, u64::from(at.pipe.div_ceil(u32::from(at.mss.max(1)))));
        }
        if self.reads.has_any(SAMPLED) {
            let sample = self.sampler.take(&Delivery {
                newest: gathered.newest,
                una: at.una,
                delivered: at.delivered as u32,
                now_us: at.now_us as u32,
            });
            set(Primitive::RateIncoming, sample.rate_incoming);
            set(Primitive::RateOutgoing, sample.rate_outgoing);
            let is_none = sample.rtt_us == 0;
            if !is_none {
                self.is_app_limited = sample.is_app_limited;
            }
            set(Primitive::RttSample, if is_none { ccp_vm::INFINITY } else { u64::from(sample.rtt_us) });
        }
        (self.acked, self.lost, self.gathered) = ([at.acked; 2], at.lost, Gathered::default());
    }

    /// True, once for each report: one is due, and the slow path was not told. From then on later reports are merged with it until it is
    /// [taken](Self::report_taken).
    #[must_use]
    pub fn announces(&mut self) -> bool {
        let is_new = self.machine.is_report_due() && !self.is_announced;
        self.is_announced |= is_new;
        is_new
    }

    /// True while the slow path was told of a report that it has not taken yet.
    #[must_use]
    pub const fn is_announced(&self) -> bool {
        self.is_announced
    }

    /// The values of the report that is due.
    #[must_use]
    pub fn report(&self) -> Option<&[u64]> {
        self.machine.report(&self.program)
    }

    /// The report that was due is taken.
    pub const fn report_taken(&mut self) {
        self.machine.report_taken();
        self.is_announced = false;
    }
}
