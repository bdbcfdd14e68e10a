//! `towpath run`: a program with the preload library and a service to talk to, a private one if need be.

use crate::ask::{dial, is_up, unreachable};
use crate::up::detached;
use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's file name.
const LIBRARY: &str = "libtowpath_preload.so";
/// A service for the whole machine, used by `run` when there is no other.
const SYSTEM: &str = "/run/towpath/control.sock";

#[derive(Debug, Args)]
pub struct Run {
    /// Control socket of the service [default: this user's service, else the machine's, else a private one]
    #[arg(long, env = "TOWPATH_CONTROL", value_name = "PATH")]
    control: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    pub fn execute(self) -> anyhow::Result<()> {
        let library = library()?;
        let control = match self.control {
            Some(path) => ready(path)?,
            None => own_or_system()?,
        };
        let mut preload = library.into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let program = &self.command[0];
        let error = Command::new(program)
            .args(&self.command[1..])
            .env("LD_PRELOAD", preload)
            .env(control::CONTROL_ENV, control)
            .env(control::VERSIONS_ENV, control::versions())
            .exec();
        Err(error).with_context(|| format!("cannot run {}", program.display()))
    }
}

/// This user's service, else the machine's if it lets us in, else a new private one of this user.
fn own_or_system() -> anyhow::Result<PathBuf> {
    let own = control::default_control_path();
    let found = [own.as_path(), Path::new(SYSTEM)].into_iter().find(|path| is_up(path));
    found.map_or_else(|| ready(own.clone()), |path| Ok(path.to_owned()))
}

/// A service that answers at `path`, started if there is none.
fn ready(path: PathBuf) -> anyhow::Result<PathBuf> {
    match dial(&path) {
        Ok(_) => return Ok(path),
        Err(Errno::NOENT | Errno::CONNREFUSED) => {}
        Err(e) => return Err(unreachable(&path, e)),
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
    builder.create(folder).with_context(|| format!("cannot make {}", folder.display()))?;
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
    Ok(path)
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
