//! Whether a preloaded library sees what a program does: by the program's file. Nothing is run.

use rustix::fs::{Access, access};
use rustix::process::{getegid, geteuid};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a preloaded library does not see a program's calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unseen {
    /// No dynamic loader runs.
    Static,
    /// Go makes system calls itself.
    Go,
    /// The loader ignores `LD_PRELOAD` for programs with rights of their own.
    Privileged,
    /// The library is for 64-bit programs.
    Narrow,
    /// The library is for glibc.
    Musl,
    /// The library is for this processor.
    Foreign,
}

impl Unseen {
    /// As the end of a sentence that begins with the program's name.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Static => "is statically linked: no dynamic loader runs that would load the library",
            Self::Go => "is a Go program: it makes system calls itself instead of calling libc",
            Self::Privileged => {
                "has rights of its own (set-user-id or capabilities): the loader ignores LD_PRELOAD"
            }
            Self::Narrow => "is a 32-bit program, the library is for 64-bit ones",
            Self::Musl => "is linked with musl, the library with glibc",
            Self::Foreign => "is built for another processor",
        }
    }

    /// What to do about it.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Static => "use a dynamically linked build of it",
            Self::Go => "put an accelerated proxy before it (haproxy, nginx), or leave it on the kernel",
            Self::Privileged => {
                "start it as the user it changes to, from a copy without the bit or the capabilities"
            }
            Self::Narrow => "use a 64-bit build of it",
            Self::Musl => "use a build of it for glibc",
            Self::Foreign => "use a build of it for this processor",
        }
    }
}

const PT_INTERP: u32 = 3;
/// Headers looked at, at most: a file may claim any number.
const HEADERS_MAX: u16 = 4096;
/// Scripts that name scripts, as many as Linux follows.
const SCRIPTS_MAX: u32 = 4;

/// Where a command leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The name leads to this program.
    Program(PathBuf),
    /// To this file, which may not be executed.
    NoProgram(PathBuf),
    /// The name leads to no file.
    Nothing,
}

/// What `execvp` will find for `command`: the first file of that name in `PATH` that may be executed, or the path itself.
pub fn find(command: &OsStr) -> Found {
    if command.as_bytes().contains(&b'/') {
        return look_at(PathBuf::from(command));
    }
    // As the C library's, where the variable is not set.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut found = Found::Nothing;
    // A folder that may not be looked into has nothing, as for the shell.
    let files = std::env::split_paths(&path).map(|folder| folder.join(command)).filter(|file| file.exists());
    for place in files.map(look_at) {
        match place {
            Found::Program(_) => return place,
            Found::NoProgram(_) if found == Found::Nothing => found = place,
            _ => {}
        }
    }
    found
}

fn look_at(path: PathBuf) -> Found {
    match path.metadata() {
        Ok(of) if of.is_file() && access(&path, Access::EXEC_OK).is_ok() => Found::Program(path),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Found::Nothing,
        _ => Found::NoProgram(path),
    }
}

/// Why the library will not see the program in this file; `None`: it will, or the file is nothing that is known here.
pub fn unseen(path: &Path) -> Option<Unseen> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPTS_MAX {
        let file = File::open(&path).ok()?;
        match interpreter_of_script(&file) {
            Some(next) => path = next,
            None => return by_rights(&path, &file).or_else(|| by_format(&file)),
        }
    }
    None
}

/// As [`unseen`], of a file that runs already: whether it got rights of its own is known better elsewhere.
pub fn unseen_format(path: &Path) -> Option<Unseen> {
    by_format(&File::open(path).ok()?)
}

fn interpreter_of_script(file: &File) -> Option<PathBuf> {
    let mut line = Vec::new();
    file.take(256).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.trim_ascii_start().split(u8::is_ascii_whitespace).next()?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

fn by_rights(path: &Path, file: &File) -> Option<Unseen> {
    let of = file.metadata().ok()?;
    let mode = of.permissions().mode();
    let user = mode & 0o4000 != 0 && of.uid() != geteuid().as_raw();
    let group = mode & 0o2010 == 0o2010 && of.gid() != getegid().as_raw();
    let mut value = [0u8; 64];
    let capable = !geteuid().is_root()
        && rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok_and(|n| n > 0);
    (user || group || capable).then_some(Unseen::Privileged)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part: [u8; N] = bytes.get(at..at + N)?.try_into().ok()?;
    Some(part.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// The machine that the library is built for, as ELF numbers it; `None`: not known here, so nothing is said of others.
const MACHINE: Option<u64> = match () {
    () if cfg!(target_arch = "x86_64") => Some(62),
    () if cfg!(target_arch = "aarch64") => Some(183),
    () => None,
};

/// By the ELF headers: little-endian, as on the machines that this is built for.
fn by_format(file: &File) -> Option<Unseen> {
    let read = |at: u64, bytes: &mut [u8]| file.read_exact_at(bytes, at).ok();
    let mut head = [0u8; 64];
    read(0, &mut head)?;
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    if head[5] != 1 {
        return Some(Unseen::Foreign);
    }
    if head[4] != 2 {
        return Some(Unseen::Narrow);
    }
    let machine = number::<2>(&head, 18)?;
    if MACHINE.is_some_and(|own| own != machine) {
        return Some(Unseen::Foreign);
    }
    if names_of_sections(&head, read).is_some_and(|names| is_go(&names)) {
        return Some(Unseen::Go);
    }
    let (table, size, count) = (number::<8>(&head, 32)?, number::<2>(&head, 54)?, number::<2>(&head, 56)?);
    for i in 0..count.min(u64::from(HEADERS_MAX)) {
        let mut header = [0u8; 56];
        read(table.checked_add(i * size)?, &mut header)?;
        if number::<4>(&header, 0)? == u64::from(PT_INTERP) {
            let mut loader = vec![0; number::<8>(&header, 32)?.min(4096) as usize];
            read(number::<8>(&header, 8)?, &mut loader)?;
            let is_musl = loader.windows(7).any(|part| part == b"ld-musl");
            return is_musl.then_some(Unseen::Musl);
        }
    }
    Some(Unseen::Static)
}

/// The table of section names, zeros between them.
fn names_of_sections(head: &[u8; 64], read: impl Fn(u64, &mut [u8]) -> Option<()>) -> Option<Vec<u8>> {
    let (table, size) = (number::<8>(head, 40)?, number::<2>(head, 58)?);
    let mut header = [0u8; 64];
    read(table.checked_add(number::<2>(head, 62)?.checked_mul(size)?)?, &mut header)?;
    let mut names = vec![0; number::<8>(&header, 32)?.min(1 << 20) as usize];
    read(number::<8>(&header, 24)?, &mut names)?;
    Some(names)
}

/// Go's linker leaves these sections, in stripped programs too.
fn is_go(names: &[u8]) -> bool {
    names.split(|byte| *byte == 0).any(|name| matches!(name, b".go.buildinfo" | b".note.go.buildid"))
}

#[cfg(test)]
mod tests;
