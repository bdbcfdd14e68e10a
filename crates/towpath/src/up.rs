//! `towpath up`: runs a service in the foreground, or detached with a log file beside the control socket.

use crate::manager::{self, Manager};
use crate::table::{align, print};
use anyhow::{Context, bail};
use clap::{Args, CommandFactory};
use service::{Config, Options, Service, ServiceError};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest start of a detached service: the check whether an address is free takes up to 9 s (RFC 5227).
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes at the end of a log in which an error is searched.
const TAIL_BYTES: u64 = 4096;

/// The text after `towpath up -h`.
pub const SHORT_HELP: &str =
    "All options: towpath up --help. Each is a variable and a key of --config's file.";

/// The text after `towpath up --help`.
pub const HELP: &str = "Examples:\n  \
towpath up                          stay in the foreground, for this host's own connections\n  \
towpath up --detach                 go to the background once it works\n  \
towpath up --port tap --address 10.9.0.2/24 --host-address 10.9.0.1/24\n  \
towpath up --config /etc/towpath.toml --log debug\n  \
towpath up --config /etc/towpath.toml --check\n\n\
The file has the same keys as the flags, with _ for -: `region_mib = 64`. A flag wins over its\n\
variable, the variable over the file.";

#[derive(Debug, Args)]
pub struct Up {
    /// TOML file with any of these keys
    #[arg(long, env = "TOWPATH_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Go to the background once the service works
    ///
    /// Its port works then, too; or it fails as without this flag. The log goes to a file beside the control socket. The log of a service that
    /// has died is kept beside it.
    #[arg(long)]
    detach: bool,
    /// Only check flags, variables and files, and print what would be in force
    ///
    /// Opens neither port nor control socket. Exit status 1: something is wrong, and the text says what.
    #[arg(long, conflicts_with = "detach")]
    check: bool,
    /// Print --help with the options that are for tests: faults of the port
    #[arg(long, hide_short_help = true)]
    help_all: bool,
    /// This is the background process that --detach starts
    #[arg(long, hide = true)]
    session: bool,
    #[command(flatten)]
    options: Options,
}

impl Up {
    pub fn execute(self) -> anyhow::Result<()> {
        if self.help_all {
            return print(&help_all().to_string());
        }
        let file = self.config.as_deref().map(Options::from_file).transpose()?.unwrap_or_default();
        let set = self.options.clone().or(file.clone());
        let mut config = set.clone().resolve()?;
        config.control = std::path::absolute(&config.control).context("cannot tell where --control is")?;
        filter(&config)?;
        config.without_effect().iter().for_each(|told| eprintln!("towpath: {told}"));
        if self.check {
            config.check_place()?;
            return print(&checked(&config, set, &self.options, &file));
        }
        if self.detach {
            // The service checks this too, but only after the running service's log has been truncated.
            if let Some(pid) = service::pid_behind(&config.control) {
                return Err(ServiceError::AlreadyUp { control: config.control, pid: Some(pid) }.into());
            }
            let arguments: Vec<_> = std::env::args_os().skip(2).filter(|a| a != "--detach").collect();
            return detached(&config.control, arguments);
        }
        if self.session {
            rustix::process::setsid().context("cannot leave the session")?;
        }
        foreground(config, self.session)
    }
}

/// The help of `towpath up`, including the options that `--help` hides.
fn help_all() -> clap::builder::StyledStr {
    let mut all = crate::Cli::command();
    all.build();
    let up = all.find_subcommand("up").cloned().unwrap_or_default();
    let is_fault = |arg: &clap::Arg| arg.get_id().as_str().starts_with("fault_");
    up.mut_args(|arg| if is_fault(&arg) { arg.hide(false) } else { arg }).render_long_help()
}

/// What decides which lines are logged.
fn filter(config: &Config) -> anyhow::Result<tracing_subscriber::EnvFilter> {
    tracing_subscriber::EnvFilter::try_new(config.log.as_str())
        .with_context(|| format!("--log {}: not a level or filter", config.log))
}

/// The text of `--check`: the keys in force as a file that `--config` takes, each with its source; then what no single key says.
fn checked(config: &Config, set: Options, flags: &Options, file: &Options) -> String {
    let (flags, file) = (flags.set(), file.set());
    let source = |key: &str| match () {
        () if flags.contains(&key) => "flag or variable",
        () if file.contains(&key) => "file",
        () => "default",
    };
    let keys = config.in_force(set);
    let rows = keys.lines().into_iter().map(|line| {
        let source = source(line.split(' ').next().unwrap_or_default());
        vec![line, format!("# {source}")]
    });
    let mut text = align(&rows.collect::<Vec<_>>());
    let buffers = (config.ring_max, config.receive_max);
    if keys.ring_max.is_none() {
        text.push_str(&format!(
            "
# ring_max: {} to send, {} to receive",
            buffers.0, buffers.1
        ));
    }
    let policy = config.policy_source.path().filter(|path| path.exists());
    let policy = policy.map_or("no file".to_owned(), |path| path.display().to_string());
    text.push_str(&format!(
        "
# policy: {policy}, {} rules",
        config.policy.len()
    ));
    format!(
        "{text}
# No mistake was found. Neither the port nor the control socket was opened."
    )
}

fn foreground(config: Config, is_detached: bool) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(filter(&config)?)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let mut banner = format!(
        "towpath {} up at {} (pid {})",
        env!("CARGO_PKG_VERSION"),
        config.control.display(),
        std::process::id()
    );
    let differs = config.differs.clone();
    // Before the service gives up what it does not need: it may reach no socket with an abstract name afterwards.
    let manager = Manager::find();
    let service = Service::open(config)?;
    banner.push_str(&format!("\n  port: {}", service.port()));
    differs.iter().for_each(|line| banner.push_str(&format!("\n  set: {line}")));
    eprintln!("{banner}");
    if is_detached {
        // Relative paths are not needed any more, and the folder where the service was started must stay unmountable.
        std::env::set_current_dir("/").context("cannot leave the folder")?;
    }
    manager.tell(&format!("READY=1\nSTATUS=port: {}", service.port()));
    let ended = service.run();
    manager.tell("STOPPING=1");
    Ok(ended?)
}

/// The path of a detached service's log, which differs from the control path.
pub fn log_path(control: &Path) -> PathBuf {
    let log = control.with_extension("log");
    if log == control { control.with_extension("log.log") } else { log }
}

/// Starts a service in the background with these arguments of `up` and waits until it works. If it fails, the error is what it printed.
pub fn detached(
    control: &Path,
    arguments: impl IntoIterator<Item = std::ffi::OsString>,
) -> anyhow::Result<()> {
    let log = log_path(control);
    if let Some(kept) = keep_log(control, &log) {
        eprintln!("towpath: the service before this one died; its log is kept: {}", kept.display());
    }
    let file = log_file(control, &log)?;
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(own)
        .arg("up")
        .arg("--session")
        .args(arguments)
        .env_remove("LD_PRELOAD")
        // The service manager waits for the process that it started, not for this child.
        .env_remove(manager::SOCKET_ENV)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .context("cannot start the service")?;
    let patience = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            match (status.code(), last_word(&log)) {
                // The exit status of `main` after an error.
                (Some(1), Some(error)) => bail!("{error}"),
                (_, word) => {
                    let word = word.unwrap_or_else(|| "it said nothing".to_owned());
                    bail!("the service did not start ({status}): {word}");
                }
            }
        }
        // If another service has started there at the same moment, this child reports that and ends.
        if service::pid_answering(control).is_some_and(|pid| pid.unsigned_abs() == child.id()) {
            return Ok(());
        }
        if patience < Instant::now() {
            child.kill()?;
            child.wait()?;
            bail!("the service did not start within {} s; see {}", PATIENCE.as_secs(), log.display());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The path where the log of a service that died is kept.
fn kept_path(control: &Path) -> PathBuf {
    control.with_extension("died.log")
}

/// Keeps the log of a service that died, and returns its new path; the log that was kept before is replaced. `None`: the last service has ended
/// as it should, or has written nothing, or a service is there. A service removes its control socket at its end: one that is left is a dead one's.
fn keep_log(control: &Path, log: &Path) -> Option<PathBuf> {
    let is_left = control.symlink_metadata().is_ok_and(|of| of.file_type().is_socket());
    let has_words = log.symlink_metadata().is_ok_and(|of| of.is_file() && of.len() > 0);
    if !is_left || !has_words || service::pid_behind(control).is_some() {
        return None;
    }
    let kept = kept_path(control);
    std::fs::rename(log, &kept).ok().map(|()| kept)
}

/// The log of the service that was at `control` and died; `None`: it wrote none beside its control socket.
pub fn log_of_dead(control: &Path) -> Option<PathBuf> {
    let has_next = service::pid_behind(control).is_some();
    let log = if has_next { kept_path(control) } else { log_path(control) };
    log.is_file().then_some(log)
}

/// Opens the log beside the control socket and truncates it.
fn log_file(control: &Path, log: &Path) -> anyhow::Result<std::fs::File> {
    let failed =
        |error| ServiceError::Control { control: control.to_owned(), doing: "write the log beside", error };
    log.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
    let mut options = std::fs::OpenOptions::new();
    let options = options.create(true).write(true).truncate(true).mode(0o600).custom_flags(no_follow());
    Ok(options.open(log).map_err(failed)?)
}

/// The error with which a service ended: the log from its last error on, or else its last line.
fn last_word(log: &Path) -> Option<String> {
    const ERROR: &str = "towpath: ";
    let mut file = std::fs::File::open(log).ok()?;
    let begin = file.metadata().ok()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(begin)).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    let text = format!("\n{}", String::from_utf8_lossy(&bytes));
    let error = text.rfind(&format!("\n{ERROR}")).map(|at| &text[at + 1 + ERROR.len()..]);
    let word = error.or_else(|| text.lines().last())?.trim();
    (!word.is_empty()).then(|| word.to_owned())
}

fn no_follow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_found_at_the_end_of_a_long_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert_eq!(last_word(&log), None);
        std::fs::write(&log, "").unwrap();
        assert_eq!(last_word(&log), None);
        let noise = "DEBUG something\n".repeat(1000);
        std::fs::write(&log, format!("{noise}towpath: no such interface\n{noise}")).unwrap();
        assert_eq!(last_word(&log).as_deref(), Some("DEBUG something"), "too long ago");
        std::fs::write(&log, format!("{noise}towpath: one\ntowpath: in the file:\n  line 1\n")).unwrap();
        assert_eq!(last_word(&log).as_deref(), Some("in the file:\n  line 1"));
        std::fs::write(&log, b"\xff\xfe\n").unwrap();
        assert!(last_word(&log).is_some(), "a log need not be text");
    }

    #[test]
    fn faults_are_in_the_whole_help_alone() {
        let mut all = crate::Cli::command();
        all.build();
        let short = all.find_subcommand_mut("up").unwrap().render_long_help().to_string();
        let long = help_all().to_string();
        assert!(!short.contains("--fault-") && short.contains("--help-all"), "{short}");
        for name in ["loss", "reorder", "duplicate", "corrupt", "truncate", "seed"] {
            assert!(long.contains(&format!("--fault-{name}")), "{name}");
        }
        for group in ["Control socket:", "Port:", "TCP over the port:", "Users:", "Limits:", "Work and log:"]
        {
            assert!(short.contains(group) && long.contains(group), "{group}");
        }
        assert!(!long.contains("--session"));
    }
}
