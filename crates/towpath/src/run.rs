//! `towpath run`: runs a program with the preload library and a service, which it starts if needed. The exit status is the program's, or as
//! of env(1): 125 for an error of `towpath run`, 126 for a program that cannot be run, 127 for one that does not exist.

use crate::ask::{is_up, report, unreachable};
use crate::place;
use crate::program::{self, Found};
use crate::up::detached;
use anyhow::{Context, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use control::profile::{self, IO_URING_ENV, PROFILE_ENV, PROFILES, REQUIRE_ENV, Rings};
use control::{CONTROL_ENV, DialError, Distrust, Report, check_folder, dial};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The preload library's file name.
const LIBRARY: &str = "libtowpath_preload.so";
/// The variable that makes the library send every call to the kernel.
const DISABLE_ENV: &str = "TOWPATH_DISABLE";

/// Exit status: Towpath failed before the program was started.
pub const FAILED: u8 = 125;
/// Exit status: the program cannot be run, or not with `--require`.
const CANNOT_RUN: u8 = 126;
/// Exit status: the program does not exist.
const NOT_FOUND: u8 = 127;

/// The text after the help: examples, and the profiles with their settings.
pub fn help() -> String {
    let mut text = String::from(
        "Examples:\n  towpath run -- redis-server --port 7000\n  towpath run --control /tmp/red.sock -- curl \
         http://127.0.0.1:8000/\n  towpath run --profile latency -- ./trader\n  towpath run --require -- \
         redis-benchmark\n\nWhen no service answers, a private one is started for this user; it leaves with its last \
         application. Not where --control or TOWPATH_CONTROL names another place: a service must be there.\n\nThe exit status is \
         the command's; 127 when there is no such command, 126 when it cannot be run, 125 when Towpath fails before that.\n\nWith \
         --require `connect` fails with ECONNREFUSED (nobody accelerated listens at that loopback \
         address), ENETUNREACH (only the kernel has a way there), ENETDOWN (no service) or EOPNOTSUPP (the socket asked \
         for what only the kernel has), `listen` with the last two, `accept` resets kernel clients, io_uring_setup \
         fails with EPERM; one line on standard error says why. The exit status is 126 for a program that the library \
         cannot see.\n\nProfiles, and the variables they stand for; a variable that is set wins:",
    );
    for profile in &PROFILES {
        text.push_str(&format!("\n  {:<11} {}", profile.name, profile.purpose));
        for knob in profile.knobs {
            let pair = format!("{}={}", knob.variable, knob.value);
            text.push_str(&format!("\n              {pair:<26} {}", knob.effect));
        }
    }
    text
}

#[derive(Debug, Args)]
pub struct Run {
    /// Control socket of the service, which must be up (also TOWPATH_CONTROL) [default: this user's service, else this user's
    /// private one, else the machine's, else a new private one]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Do not say that the library cannot see the program
    #[arg(long, short)]
    quiet: bool,
    /// Fail instead of falling back: no service, a program that the library cannot see, or a TCP socket that the kernel would
    /// have to carry is an error (also TOWPATH_REQUIRE=1)
    #[arg(long)]
    require: bool,
    /// How the library is to behave: latency, throughput or safe, see below (also TOWPATH_PROFILE)
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PROFILES.map(|profile| profile.name)))]
    profile: Option<String>,
    /// A program's io_uring: `kernel` lets it work, and leaves on the kernel what the program may use it on; `deny` fails
    /// io_uring_setup with EPERM, and programs that can wait by epoll go on with that (also TOWPATH_IO_URING) [default: kernel]
    #[arg(long, value_name = "WHAT", value_parser = PossibleValuesParser::new(Rings::NAMES.map(|(name, _)| name)))]
    io_uring: Option<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// Replaces this process by the program. Returns if that fails; an exit status means that the reason was printed.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let required = self.require || profile::is_on(REQUIRE_ENV);
        // First, so that no service is started for a program that cannot be run.
        if let Err(status) = self.look_at_program(required) {
            return Ok(ExitCode::from(status));
        }
        let library = library()?;
        let (control, distrust) = match control(self.control)? {
            Service::Trusted(path) => (path, None),
            Service::Untrusted(path, why) if required => {
                return Err(unreachable(&path, DialError::Untrusted(why)));
            }
            Service::Untrusted(path, why) => (path, Some(why)),
        };
        if required {
            if profile::is_on(DISABLE_ENV) {
                bail!("--require, and {DISABLE_ENV} sends every call to the kernel: unset one of them");
            }
            // A service answers; it may still refuse this user.
            report(&control, Report::Statistics)?;
        }
        let mut preload = library.into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let program = &self.command[0];
        let mut command = Command::new(program);
        if required {
            command.env(REQUIRE_ENV, "1");
        }
        if let Some(why) = distrust {
            // Print it once here; otherwise each program started by this one would print it.
            let why = unreachable(&control, DialError::Untrusted(why));
            eprintln!("towpath: {why}; sockets stay on the kernel");
            command.env(DISABLE_ENV, "1");
        }
        let chosen = [(PROFILE_ENV, &self.profile), (IO_URING_ENV, &self.io_uring)];
        for (variable, value) in chosen {
            command.envs(value.as_ref().map(|value| (variable, value)));
        }
        let error = command
            .args(&self.command[1..])
            .env("LD_PRELOAD", preload)
            .env(CONTROL_ENV, control)
            .env(control::VERSIONS_ENV, control::versions())
            .exec();
        eprintln!("towpath: cannot run {}: {error}", program.display());
        Ok(ExitCode::from(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN }))
    }

    /// Checks the program and prints what is wrong with it. The error is the exit status.
    fn look_at_program(&self, required: bool) -> Result<(), u8> {
        let command = self.command[0].display();
        let path = match program::find(&self.command[0]) {
            Found::Program(path) => path,
            Found::NoProgram(path) => {
                let what = if path.is_dir() { "it is a folder" } else { "it may not be executed" };
                eprintln!("towpath: cannot run {}: {what}", path.display());
                return Err(CANNOT_RUN);
            }
            Found::Nothing => {
                eprintln!("towpath: cannot run {command}: there is no such program");
                return Err(NOT_FOUND);
            }
        };
        let Some(why) = program::unseen(&path) else { return Ok(()) };
        let (name, what) = (path.display(), why.what());
        if required {
            eprintln!("towpath: {name} {what}; {}", why.advice());
            return Err(CANNOT_RUN);
        }
        if !self.quiet {
            eprintln!(
                "towpath: {name} {what}; its sockets stay on the kernel (--require refuses it, --quiet does not say so)"
            );
        }
        Ok(())
    }
}

/// The control socket of the service to use, or of one that is not trusted.
#[derive(Debug)]
enum Service {
    Trusted(PathBuf),
    Untrusted(PathBuf, Distrust),
}

/// Finds the service to use. If one is named, only that; else this user's, else this user's private one, else the machine's if it allows this
/// user, else a new private one.
fn control(named: Option<PathBuf>) -> anyhow::Result<Service> {
    let by_variable = std::env::var_os(CONTROL_ENV).filter(|p| !p.is_empty()).map(PathBuf::from);
    let (path, by) = match (named, by_variable.filter(|path| !place::is_usual(path))) {
        (Some(path), _) => (path, "--control"),
        (None, Some(path)) => (path, CONTROL_ENV),
        (None, None) => {
            return place::found().map_or_else(without_service, |path| Ok(Service::Trusted(path)));
        }
    };
    // Absolute, because the program may change its folder.
    let path = std::path::absolute(&path).with_context(|| format!("cannot tell where {by} is"))?;
    match dial(&path) {
        Ok(_) => Ok(Service::Trusted(path)),
        Err(DialError::Untrusted(why)) => Ok(Service::Untrusted(path, why)),
        Err(DialError::Os(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR)) => bail!(
            "{by}: no service at {path}; `towpath up --detach --control {path}` starts one, and without {by} a private one is \
             started",
            path = path.display()
        ),
        Err(e) => Err(unreachable(&path, e)),
    }
}

/// The service to use where none answers that this user trusts: a private one, unless one that is not trusted sits at this user's own place.
fn without_service() -> anyhow::Result<Service> {
    let own = control::own_control_path();
    match dial(&own) {
        Err(DialError::Untrusted(why)) => Ok(Service::Untrusted(own, why)),
        _ => ready(),
    }
}

/// This user's private service, which is started if none answers. Its place is no other service's: the machine's service finds its own free.
fn ready() -> anyhow::Result<Service> {
    let path = control::private_control_path();
    match dial(&path) {
        Ok(_) => return Ok(Service::Trusted(path)),
        Err(DialError::Os(Errno::NOENT | Errno::CONNREFUSED)) => {}
        Err(DialError::Untrusted(why)) => return Ok(Service::Untrusted(path, why)),
        Err(e) => return Err(unreachable(&path, e)),
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut builder = std::fs::DirBuilder::new();
    // As the service makes it: a program that has begun as root, and become another user, may still reach the socket, and is told why not.
    let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), mode);
    builder.create(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Check before a file is made: another user must not be able to replace files in this folder.
    match check_folder(&path) {
        Ok(()) => {}
        Err(DialError::Untrusted(why)) => return Ok(Service::Untrusted(path, why)),
        Err(e) => return Err(unreachable(&path, e)),
    }
    // If two `run` start at once, the second waits here and then finds the service of the first.
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = folder.join("run.lock");
    let guard = rustix::fs::open(&lock, flags, Mode::RUSR | Mode::WUSR)
        .with_context(|| format!("cannot open {}", lock.display()))?;
    rustix::fs::flock(&guard, FlockOperation::LockExclusive)?;
    if !is_up(&path) {
        let path = path.clone().into_os_string();
        let arguments = ["--private".into(), "true".into(), "--control".into(), path];
        let started = detached(Path::new(&arguments[3]), arguments.iter().cloned());
        // The error does not matter if another `up` has started a service at the same moment.
        if !is_up(Path::new(&arguments[3])) {
            started.context("no service answers, and no private one can be started")?;
        }
    }
    Ok(Service::Trusted(path))
}

/// Finds the preload library: the path in `TOWPATH_PRELOAD`, beside this program, or in its installation folder.
fn library() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("TOWPATH_PRELOAD").filter(|p| !p.is_empty()) {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        bail!("TOWPATH_PRELOAD names {}, which is no file", path.display());
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(LIBRARY), folder.join("../lib/towpath").join(LIBRARY)];
    let found = places.iter().find(|path| path.is_file());
    let Some(found) = found else {
        bail!(
            "{LIBRARY} is neither beside this program nor in {}; build it (`cargo build --release`) or set \
             TOWPATH_PRELOAD",
            places[1].display()
        );
    };
    found.canonicalize().with_context(|| format!("cannot resolve {}", found.display()))
}
