//! Flow records of two cache lines accessed at random, with a ring borrowed from a small pool or a ring for each flow.

use crate::samples::Samples;
use crate::{Options, Report, clock};
use base::Seed;
use base::limits::{PAGE, RING_MIN};
use std::hint::black_box;

/// A flow record: one cache line for receiving, one for sending.
#[derive(Clone)]
#[repr(C, align(128))]
struct Record {
    receive: [u64; 8],
    send: [u64; 8],
}

const FLOWS: [(&str, usize); 2] = [("64k", 65_536), ("1m", 1_000_000)];
/// Rings that the pool lends, last in first out: as many as a batch has packets.
const POOL: usize = base::limits::BATCH;
/// Bytes of a request, copied into and out of a ring.
const REQUEST: usize = 64;
/// Accesses between two looks at the clock.
const LOOK: u64 = 4096;

/// Adds rows `memory/records/N`.
pub fn measure(options: &Options, samples: &mut Samples, report: &mut Report) -> anyhow::Result<()> {
    let ring = RING_MIN as usize;
    for (name, flows) in FLOWS {
        let case = format!("memory/records/{name}");
        let mut records = vec![Record { receive: [1; 8], send: [1; 8] }; flows];
        let mut pool = touched(POOL * ring);
        // As much memory again must stay free for other programs.
        let mut own = if (flows * ring) as u64 * 2 < available_bytes()? {
            touched(flows * ring)
        } else {
            report.note(format!("{case}: no ring of its own for each flow: too little memory here"));
            Vec::new()
        };
        for run in 0..options.runs() {
            let seed = run as u64;
            let span_ns = (options.seconds() * 1e9 / 8.0) as u64;
            let only = touch(&mut records, seed, span_ns, |_, _| ());
            samples.add(&case, "records-only", "touch", "ns", only);
            let mut warm: Vec<usize> = (0..POOL).collect();
            let pooled = touch(&mut records, seed, span_ns, |_, position| {
                if let Some(index) = warm.pop() {
                    copy(&mut pool, index * ring, position);
                    warm.push(index);
                }
            });
            samples.add(&case, "pool", "touch", "ns", pooled);
            if !own.is_empty() {
                let each = touch(&mut records, seed, span_ns, |flow, position| {
                    copy(&mut own, flow * ring, position);
                });
                samples.add(&case, "own-ring", "touch", "ns", each);
            }
        }
    }
    report.note(format!(
        "a touch changes both lines of a random record and copies {REQUEST} bytes into and out of its ring; the pool \
         lends {POOL} rings of {ring} bytes, last in first out"
    ));
    Ok(())
}

/// Nanoseconds per access.
fn touch(records: &mut [Record], seed: u64, span_ns: u64, mut ring: impl FnMut(usize, usize)) -> f64 {
    let mut random = Seed::new(seed);
    let (start, mut touches) = (clock::now_ns(), 0u64);
    loop {
        for _ in 0..LOOK {
            let flow = random.below(records.len() as u64) as usize;
            let record = &mut records[flow];
            record.receive[0] = record.receive[0].wrapping_add(REQUEST as u64);
            record.receive[7] ^= record.receive[1];
            record.send[0] = record.send[0].wrapping_add(record.receive[0]);
            record.send[7] ^= record.send[1];
            let position = record.receive[0] as usize;
            ring(flow, position);
        }
        touches += LOOK;
        let elapsed = clock::now_ns() - start;
        if elapsed >= span_ns {
            return elapsed as f64 / touches as f64;
        }
    }
}

fn copy(rings: &mut [u8], ring: usize, position: usize) {
    let at = ring + (position & (RING_MIN as usize - REQUEST) & !(REQUEST - 1));
    let bytes = &mut rings[at..at + REQUEST];
    let mut request = [position as u8; REQUEST];
    bytes.copy_from_slice(black_box(&request));
    request.copy_from_slice(black_box(bytes));
    black_box(&request);
}

/// `len` bytes of memory, all pages of which are populated.
fn touched(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for page in bytes.chunks_mut(PAGE) {
        page[0] = 1;
    }
    bytes
}

fn available_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let kib = text.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.split_whitespace().next());
    Ok(kib.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024)
}
