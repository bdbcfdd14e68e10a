//! `towpath up`: in the foreground, or detached with a log file beside the control socket.

use anyhow::{Context, bail};
use clap::Args;
use service::{Config, Options, Service, ServiceError};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a detached service may take to accept.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct Up {
    /// TOML file with any of these keys
    #[arg(long, env = "TOWPATH_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Go to the background once the control socket accepts; the log goes to a file beside it
    #[arg(long)]
    detach: bool,
    /// This is the background process that --detach starts
    #[arg(long, hide = true)]
    session: bool,
    #[command(flatten)]
    options: Options,
}

impl Up {
    pub fn execute(self) -> anyhow::Result<()> {
        let file = self.config.as_deref().map(Options::from_file).transpose()?.unwrap_or_default();
        let config = self.options.or(file).resolve()?;
        if self.detach {
            // Also found out below, but only after the running service's log is gone.
            if let Some(pid) = service::pid_behind(&config.control) {
                return Err(ServiceError::AlreadyUp { control: config.control, pid: Some(pid) }.into());
            }
            let arguments: Vec<_> = std::env::args_os().skip(2).filter(|a| a != "--detach").collect();
            return detached(&config.control, arguments);
        }
        if self.session {
            rustix::process::setsid().context("cannot leave the session")?;
        }
        foreground(config)
    }
}

fn foreground(config: Config) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log)
        .with_context(|| format!("--log {}: not a level or filter", config.log))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
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
    let service = Service::open(config)?;
    banner.push_str(&format!("\n  port: {}", service.port()));
    differs.iter().for_each(|line| banner.push_str(&format!("\n  set: {line}")));
    eprintln!("{banner}");
    Ok(service.run()?)
}

/// The log of a detached service: never the control path itself.
pub fn log_path(control: &Path) -> PathBuf {
    let log = control.with_extension("log");
    if log == control { control.with_extension("log.log") } else { log }
}

/// Starts a service in the background with these arguments of `up` and returns once it accepts.
pub fn detached(
    control: &Path,
    arguments: impl IntoIterator<Item = std::ffi::OsString>,
) -> anyhow::Result<()> {
    let log = log_path(control);
    if let Some(folder) = control.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).write(true).truncate(true).mode(0o600).custom_flags(no_follow());
    let file = file.open(&log).with_context(|| format!("cannot write the log {}", log.display()))?;
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(own)
        .arg("up")
        .arg("--session")
        .args(arguments)
        .env_remove("LD_PRELOAD")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .context("cannot start the service")?;
    let patience = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            let mut text = String::new();
            std::fs::File::open(&log)?.take(4096).read_to_string(&mut text)?;
            let last = text.lines().last().unwrap_or("it said nothing").trim_start_matches("towpath: ");
            bail!("the service did not start ({status}): {last}");
        }
        // Another service may have come up there at the same moment: then ours is about to say so and leave.
        if service::pid_behind(control).is_some_and(|pid| pid.unsigned_abs() == child.id()) {
            return Ok(());
        }
        if patience < Instant::now() {
            bail!("the service does not accept at {}; see {}", control.display(), log.display());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn no_follow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits() as i32
}
