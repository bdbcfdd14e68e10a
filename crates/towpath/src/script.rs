//! `towpath script`: runs scripts from files, prints their outcomes as text or JSON, and writes their packets to a capture.

use anyhow::{Context, bail};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use script::{IpVersion, Keep, Outcome, Passed, Report, Settings};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The largest script file that is read, in bytes.
const FILE_MAX: u64 = 16 << 20;

/// What to run and what to tell.
#[derive(Debug, clap::Args)]
pub struct Script {
    /// Files with scripts to run
    #[arg(required = true, value_name = "FILE.pkt")]
    files: Vec<PathBuf>,
    /// Print packets and calls as they come
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Only failures, unsupported scripts and the sum
    #[arg(short, long)]
    quiet: bool,
    /// Write all packets to this file (pcapng)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Sockets and packets: ipv4, ipv6 or ipv4-mapped-ipv6
    #[arg(long, value_name = "VERSION", default_value = "ipv4")]
    ip_version: String,
    /// A word of the scripts and what it stands for
    #[arg(short = 'D', long = "define", value_name = "WORD=VALUE")]
    defines: Vec<String>,
    /// Any option that a script may have at its top, without its dashes: tolerance_usecs=10000
    #[arg(short, long = "option", value_name = "NAME[=VALUE]")]
    options: Vec<String>,
}

impl Script {
    /// Runs all scripts.
    ///
    /// # Errors
    /// When a file cannot be read or written, or an option is unknown.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let settings = self.settings()?;
        let mut reports = Vec::new();
        for file in &self.files {
            let report = self.one(file, &settings)?;
            if !self.json {
                self.tell(file, &report);
            }
            reports.push((file, report));
        }
        if let Some(path) = &self.pcap {
            let frames = reports.iter().flat_map(|(_, report)| &report.frames);
            write_capture(path, frames).with_context(|| format!("writing {}", path.display()))?;
        }
        let count = |wanted: fn(&Outcome) -> bool| reports.iter().filter(|(_, r)| wanted(&r.outcome)).count();
        let passed = count(|o| *o == Outcome::Passed);
        let failed = count(|o| matches!(o, Outcome::Failed { .. }));
        let unsupported = reports.len() - passed - failed;
        if self.json {
            let scripts: Vec<_> = reports
                .iter()
                .map(|(file, report)| serde_json::json!({ "file": file, "result": report.outcome }))
                .collect();
            let all = serde_json::json!({
                "passed": passed, "failed": failed, "unsupported": unsupported, "scripts": scripts,
            });
            crate::table::print(&serde_json::to_string_pretty(&all)?)?;
        } else {
            crate::table::print(&format!("{passed} passed, {failed} failed, {unsupported} unsupported"))?;
        }
        Ok(match (failed, unsupported) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        })
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings::for_version(match self.ip_version.as_str() {
            "ipv4" => IpVersion::V4,
            "ipv6" => IpVersion::V6,
            "ipv4-mapped-ipv6" => IpVersion::Mapped,
            other => bail!("no IP version {other}: ipv4, ipv6 or ipv4-mapped-ipv6"),
        });
        for define in &self.defines {
            let (word, value) = define.split_once('=').with_context(|| format!("-D {define}: WORD=VALUE"))?;
            settings.defines.push((word.to_owned(), value.to_owned()));
        }
        for option in &self.options {
            settings.set_option(option).map_err(|trouble| anyhow::anyhow!("{option}: {:?}", trouble.kind))?;
        }
        Ok(settings)
    }

    fn one(&self, file: &Path, settings: &Settings) -> anyhow::Result<Report> {
        let reading = || format!("reading {}", file.display());
        let len = std::fs::metadata(file).with_context(reading)?.len();
        if len > FILE_MAX {
            bail!("{}: {len} bytes are too much for a script", file.display());
        }
        let text = String::from_utf8_lossy(&std::fs::read(file).with_context(reading)?).into_owned();
        Ok(script::run_text(&text, settings, Keep { frames: self.pcap.is_some() }))
    }

    fn tell(&self, file: &Path, report: &Report) {
        let is_good = report.outcome == Outcome::Passed;
        if self.quiet && is_good {
            return;
        }
        let mut lines = String::new();
        if self.verbose {
            report.trace.iter().for_each(|line| lines.push_str(&format!("{line}\n")));
        }
        lines.push_str(&match &report.outcome {
            Outcome::Passed => format!("{}: passed", file.display()),
            Outcome::Failed { line, why } => format!("{}:{line}: failed: {why}", file.display()),
            Outcome::Unsupported { line, what } => format!("{}:{line}: unsupported: {what}", file.display()),
        });
        // A closed pipe is no error here: `print` ignores it, and other errors recur when the sum is printed.
        let _ = crate::table::print(&lines);
    }
}

fn write_capture<'a>(path: &Path, frames: impl Iterator<Item = &'a Passed>) -> anyhow::Result<()> {
    let mut writer = PcapNgWriter::new(BufWriter::new(File::create(path)?))?;
    let interface = InterfaceDescriptionBlock {
        linktype: DataLink::ETHERNET,
        snaplen: 0,
        options: vec![InterfaceDescriptionOption::IfTsResol(9)],
    };
    writer.write_pcapng_block(interface)?;
    for passed in frames {
        let inbound_or_outbound = if passed.is_sent { 2 } else { 1 };
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_micros(passed.at.unsigned_abs()),
            original_len: passed.frame.len() as u32,
            data: Cow::Borrowed(&passed.frame),
            options: vec![EnhancedPacketOption::Flags(inbound_or_outbound)],
        };
        writer.write_block(&block.into_block())?;
    }
    writer.into_inner().flush()?;
    Ok(())
}
