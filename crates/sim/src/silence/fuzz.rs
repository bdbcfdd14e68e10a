//! What bytes make the peer say before it falls silent.

use super::{Bulk, Saying, Silence, Terms};
use crate::directed::Input;
use base::Duration;
use congestion::Algorithm;

/// Largest number of steps, and of segments that the peer sends; the rest of a longer string is ignored.
const STEPS_MAX: usize = 128;
const SAYINGS_MAX: u32 = 4_000;
const SIZES: [u16; 4] = [48, 100, 400, 1448];
const RECORDS: [u16; 4] = [0, 1, 512, 512];
const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::Cubic,
    Algorithm::Reno,
    Algorithm::Dctcp,
    Algorithm::Bbr,
    Algorithm::Constant(1 << 20),
    Algorithm::Constant(20_000),
    Algorithm::Rate(100_000),
    Algorithm::RateDctcp,
];
/// How long the application rests: send times come back after 71 minutes.
const RESTS: [Duration; 4] = [
    Duration::from_ms(100),
    Duration::from_secs(3),
    Duration::from_secs(40 * 60),
    Duration::from_secs(65 * 60),
];
const PASSES: [Duration; 16] = [
    Duration::from_us(1),
    Duration::from_us(50),
    Duration::from_us(300),
    Duration::from_ms(1),
    Duration::from_ms(5),
    Duration::from_ms(40),
    Duration::from_ms(250),
    Duration::from_secs(2),
    Duration::from_us(100),
    Duration::from_us(600),
    Duration::from_ms(2),
    Duration::from_ms(10),
    Duration::from_ms(100),
    Duration::from_ms(600),
    Duration::from_secs(20),
    Duration::from_secs(40 * 60),
];

struct World {
    bulk: Bulk,
    mss: u32,
    window: u16,
    said: u32,
}

/// Takes the steps that `bytes` describe, and then the peer is silent until the host has given it up.
///
/// # Errors
/// A description of the oracle that does not hold.
pub fn run(bytes: &[u8]) -> Result<Silence, String> {
    let mut input = Input::new(bytes);
    let (how, what) = (input.byte(), input.byte());
    let pick = usize::from(what);
    let algorithm = ALGORITHMS[pick >> 4 & 7];
    // Where no loss holds the flow back, small segments would be very many.
    let least = if pick & 64 != 0 { 400 } else { 0 };
    let terms = Terms {
        mss: SIZES[pick & 3].max(least),
        sack: how & 7 != 0,
        timestamps: how & 8 != 0,
        loss_records: RECORDS[pick >> 2 & 3],
        algorithm,
    };
    let mut bulk = Bulk::open(&terms)?;
    // As many as a send ring of the simulator has room for, or fewer.
    let most = (1 << 20) / 2 / u32::from(terms.mss);
    let segments = 10 + u32::from(input.word()) % 2_000;
    // Fewer are in flight where congestion control holds them back.
    let _ = bulk.fill(segments.min(most) * u32::from(terms.mss));
    let mut world = World { bulk, mss: u32::from(terms.mss), window: u16::MAX, said: 0 };
    for _ in 0..STEPS_MAX {
        if input.is_empty() || world.said >= SAYINGS_MAX {
            break;
        }
        world.step(&mut input)?;
    }
    world.bulk.end()
}

impl World {
    fn say(&mut self, saying: Saying) -> Result<(), String> {
        self.said += 1;
        self.bulk.say(&Saying { window: self.window, ..saying })
    }

    /// A number of bytes in flight, mostly at the edge of a segment.
    fn place(&self, input: &mut Input<'_>) -> u32 {
        let (word, kind) = (u32::from(input.word()), input.byte());
        let flight = self.bulk.in_flight();
        let segments = flight / self.mss + 1;
        let bytes = if kind < 32 { input.double() } else { word % segments * self.mss };
        if kind < 4 { bytes } else { bytes.min(flight) }
    }

    fn step(&mut self, input: &mut Input<'_>) -> Result<(), String> {
        let nothing = Saying::default();
        match input.byte() % 13 {
            0 => {
                let ack = self.place(input);
                self.say(Saying { ack, is_early: input.byte() & 1 == 0, ..nothing })
            }
            1 | 2 => {
                let blocks = [0; 3].map(|_| (self.place(input), self.place(input)));
                self.say(Saying { blocks, ..nothing })
            }
            3 | 4 => self.grow(input),
            5 | 6 => self.comb(input),
            7 | 8 => self.bulk.pass(PASSES[usize::from(input.byte() & 15)]),
            9 => {
                let (ack, payload) = (self.place(input), input.word() % 400);
                self.window = [0, 1, 100, u16::MAX][usize::from(input.byte() & 3)];
                self.say(Saying { ack, payload, ..nothing })
            }
            10 => {
                let duplicate = self.place(input);
                self.say(Saying { duplicate, is_early: input.byte() & 1 == 0, ..nothing })
            }
            11 => self.bulk.rest(RESTS[usize::from(input.byte() & 3)]),
            _ => {
                for _ in 0..input.byte() & 31 {
                    self.say(nothing)?;
                }
                Ok(())
            }
        }
    }

    /// One report that grows by a segment, or less, with each segment of the peer.
    fn grow(&mut self, input: &mut Input<'_>) -> Result<(), String> {
        let (from, count) = (self.place(input), u32::from(input.word()) % 800);
        let (by, time) = (1 + input.double() % self.mss, PASSES[usize::from(input.byte() & 3)]);
        for n in 1..=count {
            self.say(Saying {
                blocks: [(from, from.saturating_add(n * by)), (0, 0), (0, 0)],
                ..Saying::default()
            })?;
            self.bulk.pass(time)?;
        }
        Ok(())
    }

    /// Reports of every second segment, or of others at equal distances.
    fn comb(&mut self, input: &mut Input<'_>) -> Result<(), String> {
        let (from, count) = (self.place(input), u32::from(input.word()) % 400);
        let (every, time) = (2 + u32::from(input.byte() & 3), PASSES[usize::from(input.byte() & 3)]);
        let tooth = |n: u32| {
            let left = from.saturating_add(n * every * self.mss);
            (left, left.saturating_add(self.mss))
        };
        let teeth: Vec<_> = (0..count).map(|n| [n * 3, n * 3 + 1, n * 3 + 2].map(tooth)).collect();
        for blocks in teeth {
            self.say(Saying { blocks, ..Saying::default() })?;
            self.bulk.pass(time)?;
        }
        Ok(())
    }
}
