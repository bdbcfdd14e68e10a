//! `towpath run`: a program with the preload library and a service to talk to, a private one if need be.

use crate::ask::{is_up, report, unreachable};
use crate::program;
use crate::up::detached;
use anyhow::{Context, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use control::profile::{self, IO_URING_ENV, PROFILE_ENV, PROFILES, REQUIRE_ENV, Rings};
use control::{DialError, Distrust, Report, check_folder, dial};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's file name.
const LIBRARY: &str = "libtowpath_preload.so";
/// A service for the whole machine, used by `run` when there is no other.
const SYSTEM: &str = "/run/towpath/control.sock";

/// Sends every call to the kernel.
const DISABLE_ENV: &str = "TOWPATH_DISABLE";

/// As the shell's for a command that is there and cannot be run.
const CANNOT_RUN: i32 = 126;

/// Examples, and the profiles with what they set.
pub fn help() -> String {
    let mut text = String::from(
        "Examples:\n  towpath run -- redis-server --port 7000\n  towpath run --control /run/towpath/control.sock -- curl \
         http://127.0.0.1:8000/\n  towpath run --profile latency -- ./trader\n  towpath run --require -- \
         redis-benchmark\n\nWhen no service answers, a private one is started for this user; it leaves with its last \
         application.\n\nWith --require `connect` fails with ECONNREFUSED (nobody accelerated listens at that loopback \
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
    /// Control socket of the service [default: this user's service, else the machine's, else a private one]
    #[arg(long, env = "TOWPATH_CONTROL", value_name = "PATH")]
    control: Option<PathBuf>,
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
    pub fn execute(self) -> anyhow::Result<()> {
        let required = self.require || profile::is_on(REQUIRE_ENV);
        self.look_at_program(required);
        let library = library()?;
        let found = match self.control {
            Some(path) => ready(path)?,
            None => own_or_system()?,
        };
        let (control, distrust) = match found {
            Found::Trusted(path) => (path, None),
            Found::Untrusted(path, why) if required => {
                return Err(unreachable(&path, DialError::Untrusted(why)));
            }
            Found::Untrusted(path, why) => (path, Some(why)),
        };
        if required {
            if profile::is_on(DISABLE_ENV) {
                bail!("--require, and {DISABLE_ENV} sends every call to the kernel: unset one of them");
            }
            // Somebody answers; it may yet refuse this user.
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
            // Said here, once; each program that this one starts would say it again.
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
            .env(control::CONTROL_ENV, control)
            .env(control::VERSIONS_ENV, control::versions())
            .exec();
        Err(error).with_context(|| format!("cannot run {}", program.display()))
    }
}

impl Run {
    /// A program that the library will not see is refused where that matters, and told of where somebody reads it.
    fn look_at_program(&self, required: bool) {
        let Some(path) = program::find(&self.command[0]) else { return };
        let Some(why) = program::unseen(&path) else { return };
        let (name, what) = (path.display(), why.what());
        if required {
            eprintln!("towpath: {name} {what}; {}", why.advice());
            std::process::exit(CANNOT_RUN);
        }
        if std::io::stderr().is_terminal() {
            eprintln!("towpath: {name} {what}; its sockets stay on the kernel (--require refuses it)");
        }
    }
}

/// A service for the program, or why the one at that path is not used.
#[derive(Debug)]
enum Found {
    Trusted(PathBuf),
    Untrusted(PathBuf, Distrust),
}

/// This user's service, else the machine's if it lets us in, else a new private one of this user.
fn own_or_system() -> anyhow::Result<Found> {
    let own = control::default_control_path();
    let found = [own.as_path(), Path::new(SYSTEM)].into_iter().find(|path| is_up(path));
    found.map_or_else(|| ready(own.clone()), |path| Ok(Found::Trusted(path.to_owned())))
}

/// A service that answers at `path`, started if there is none.
fn ready(path: PathBuf) -> anyhow::Result<Found> {
    match dial(&path) {
        Ok(_) => return Ok(Found::Trusted(path)),
        Err(DialError::Os(Errno::NOENT | Errno::CONNREFUSED)) => {}
        Err(DialError::Untrusted(why)) => return Ok(Found::Untrusted(path, why)),
        Err(e) => return Err(unreachable(&path, e)),
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
    builder.create(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Nothing is made in a folder where another user could replace it.
    match check_folder(&path) {
        Ok(()) => {}
        Err(DialError::Untrusted(why)) => return Ok(Found::Untrusted(path, why)),
        Err(e) => return Err(unreachable(&path, e)),
    }
    // Two `run` at once: the second waits here and then finds the service of the first.
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = folder.join("run.lock");
    let guard = rustix::fs::open(&lock, flags, Mode::RUSR | Mode::WUSR)
        .with_context(|| format!("cannot open {}", lock.display()))?;
    rustix::fs::flock(&guard, FlockOperation::LockExclusive)?;
    if !is_up(&path) {
        let path = path.clone().into_os_string();
        let arguments = ["--private".into(), "true".into(), "--control".into(), path];
        let started = detached(Path::new(&arguments[3]), arguments.iter().cloned());
        // A failure does not matter when an `up` at the same moment was faster.
        if !is_up(Path::new(&arguments[3])) {
            started.context("no service answers, and no private one can be started")?;
        }
    }
    Ok(Found::Trusted(path))
}

/// The preload library: where `TOWPATH_PRELOAD` says, beside this program, or where it is installed.
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
