//! A verified program as bytes, for machines that are not written in Rust: the kernel's (crate `ccp-linux`). Numbers are in the order of
//! this processor, as both sides run on it.
//!
//! ```text
//!    0: 256 steps, each: operation | result | left | right, a byte each; operands as in `slots`
//! 1024: 16 events, each: first step of the condition u16 | of the body u16 | end u16 | 0 u16
//! 1152: 176 constants u64
//! 2560: what 32 variables begin with, u64: control, then report variables
//! 2816: 16 rules by which reports merge, a byte each: 0 sum, 1 least, 2 greatest, 3 newest
//! 2832: which of these begin anew after a report, a bit each, u32
//! 2836: number of steps u16 | of events u8 | of report variables u8
//! ```

use crate::program::Program;
use crate::register::REPORTS_MAX;
use crate::slots::{CONSTANTS_MAX, VARIABLES};
use crate::{EVENTS_MAX, INSTRUCTIONS_MAX};

const STEP_LEN: usize = 4;
const SPAN_LEN: usize = 8;
const SPANS: usize = STEP_LEN * INSTRUCTIONS_MAX;
const CONSTANTS: usize = SPANS + SPAN_LEN * EVENTS_MAX;
const INITIAL: usize = CONSTANTS + 8 * CONSTANTS_MAX;
const MERGES: usize = INITIAL + 8 * VARIABLES;
const VOLATILE: usize = MERGES + REPORTS_MAX;
const COUNTS: usize = VOLATILE + 4;

/// Bytes of a program's image.
pub const IMAGE_LEN: usize = COUNTS + 4;

const _: () = assert!(SPANS == 1024 && CONSTANTS == 1152 && INITIAL == 2560 && MERGES == 2816);
const _: () = assert!(VOLATILE == 2832 && IMAGE_LEN == 2840);

impl Program {
    /// The program as bytes; this file draws them.
    #[must_use]
    pub fn image(&self) -> [u8; IMAGE_LEN] {
        let mut image = [0; IMAGE_LEN];
        for (place, step) in image[..SPANS].chunks_exact_mut(STEP_LEN).zip(&self.steps) {
            place.copy_from_slice(&[step.op as u8, step.result, step.left, step.right]);
        }
        for (place, span) in image[SPANS..CONSTANTS].chunks_exact_mut(SPAN_LEN).zip(&self.spans) {
            for (half, number) in place.chunks_exact_mut(2).zip([span.start, span.body, span.end]) {
                half.copy_from_slice(&number.to_ne_bytes());
            }
        }
        let words = self.constants.iter().chain(&self.initial);
        for (place, word) in image[CONSTANTS..MERGES].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        for (place, rule) in image[MERGES..VOLATILE].iter_mut().zip(self.merges) {
            *place = rule as u8;
        }
        image[VOLATILE..COUNTS].copy_from_slice(&self.volatile.to_ne_bytes());
        image[COUNTS..COUNTS + 2].copy_from_slice(&self.step_count.to_ne_bytes());
        image[COUNTS + 2] = self.event_count;
        image[COUNTS + 3] = self.report_count;
        image
    }
}
