//! What a trial takes by the clock: `towpath cc try` of 30 virtual seconds, of a program alone and of an algorithm in Python, as a person runs it.

use crate::bars::{Bar, Limit, Measure};
use crate::samples::Samples;
use crate::{Options, Report, launch, program};
use std::process::Command;

/// The system of these rows: the whole command, from its start to its end.
pub const SYSTEM: &str = "cc try";
/// The files, each with its name and text.
const FILES: [(&str, &str, &str); 2] = [
    ("program", "reno.ccp", include_str!("../../../ccp-algorithms/src/programs/reno.ccp")),
    ("python", "aimd.py", include_str!("../../../ccp-python/examples/aimd.py")),
];
/// Virtual seconds of a trial. The link is the command's default.
const SECONDS: &str = "30";
/// A trial that takes longer has failed, seconds.
const PATIENCE: f64 = 60.0;

pub const BARS: &[Bar] =
    &[Bar { cases: "try/", metric: "took", measure: Measure::Alone, limit: Limit::Most(2.0) }];

/// Measures all trials. What does not run here is a note. False if there is no `towpath` to run.
///
/// # Errors
/// When no folder for the files can be had.
pub fn trials(options: &Options, samples: &mut Samples, report: &mut Report) -> anyhow::Result<bool> {
    let towpath = match launch::towpath(options) {
        Ok(towpath) => towpath,
        Err(why) => {
            report.note(format!("try: {why:#}"));
            return Ok(false);
        }
    };
    let folder = launch::folder()?;
    for (case, name, text) in FILES {
        let file = folder.path().join(name);
        std::fs::write(&file, text)?;
        for _ in 0..options.runs() {
            let mut command = Command::new(&towpath);
            command.args(["cc", "try", "--seconds", SECONDS]).arg(&file);
            match program::run(&mut command, PATIENCE) {
                Ok(run) => samples.add(&format!("try/{case}"), SYSTEM, "took", "s", run.wall_ns as f64 / 1e9),
                Err(why) => {
                    report.note(format!("try/{case}: {why:#}"));
                    break;
                }
            }
        }
    }
    Ok(true)
}
