//! The released agent of figure 13: the program `cubic` of the crate `generic_cong_avoid` 0.4.0, unmodified, where there is one.
//!
//! It binds `/tmp/ccp/portus` and puts `/tmp/ccp` in front of the service's path, so a link leads from `/tmp/ccp/tmp` to `/tmp` meanwhile.

use crate::program::{self, Running};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Its name in results.
pub const SYSTEM: &str = "released";
/// Folder with the program.
const FOLDER: &str = "TOWPATH_RELEASED_AGENTS";
/// Where the program's socket is.
pub const ADDRESS: &str = "/tmp/ccp/portus";
/// The link by which it finds services below `/tmp`.
const LINK: &str = "/tmp/ccp/tmp";

/// The program, or what is missing.
pub fn find() -> Result<PathBuf, String> {
    let folder = std::env::var_os(FOLDER).ok_or_else(|| {
        format!(
            "ccp13: not measured with the released agent: {FOLDER} names no folder with its `cubic`; `cargo install --locked --features bin --root \
             FOLDER generic_cong_avoid@0.4.0` puts it into FOLDER/bin"
        )
    })?;
    let cubic = Path::new(&folder).join("cubic");
    match cubic.is_file() {
        true => Ok(cubic),
        false => Err(format!("ccp13: not measured with the released agent: there is no {}", cubic.display())),
    }
}

/// The running program. What was made for it below `/tmp/ccp` goes with it.
#[derive(Debug)]
pub struct Released(Running);

impl Released {
    /// Starts the program and waits until its socket is there.
    ///
    /// # Errors
    /// When another agent has its place, or it does not start.
    pub fn start(cubic: &Path) -> anyhow::Result<Self> {
        let folder = Path::new(ADDRESS).parent().context("a path in a folder")?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        if Path::new(ADDRESS).exists() || Path::new(LINK).exists() {
            bail!("{} is used by another agent", folder.display());
        }
        std::os::unix::fs::symlink("/tmp", LINK).with_context(|| format!("cannot make {LINK}"))?;
        let mut command = Command::new(cubic);
        command.args(["--ipc", "unix"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut released = Self(Running::start(&mut command)?);
        let is_there = program::until(5.0, "the released agent's socket", || match released.0.has_ended() {
            Some(_) => Some(false),
            None => Path::new(ADDRESS).exists().then_some(true),
        })?;
        if !is_there {
            bail!("the released agent has ended at once");
        }
        Ok(released)
    }

    /// The program's process id.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        // Nothing more can be done if they stay; the next start says so.
        let _ = std::fs::remove_file(ADDRESS);
        let _ = std::fs::remove_file(LINK);
    }
}
