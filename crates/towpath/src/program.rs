//! Decides from a program's file whether a preloaded library sees the program's calls. Runs nothing.

use rustix::fs::{Access, access};
use rustix::process::{getegid, geteuid};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The reason why a preloaded library does not see a program's calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unseen {
    /// The program is statically linked: no dynamic loader runs.
    Static,
    /// Go programs make system calls without libc.
    Go,
    /// The loader ignores `LD_PRELOAD` for programs with set-user-id, set-group-id or capabilities.
    Privileged,
    /// The program is a 32-bit program, and the library is for 64-bit programs.
    Narrow,
    /// The program uses musl, and the library is for glibc.
    Musl,
    /// The program is for another processor.
    Foreign,
}

impl Unseen {
    /// The reason as the end of a sentence that begins with the program's name.
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

    /// Advice for this reason.
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
/// The most program headers that are read: a file may claim any number.
const HEADERS_MAX: u16 = 4096;
/// The longest chain of scripts that have a script as interpreter, as on Linux.
const SCRIPTS_MAX: u32 = 4;

/// The result of a search for a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The file of the program.
    Program(PathBuf),
    /// A file or folder that cannot be executed.
    NoProgram(PathBuf),
    /// There is no such file.
    Nothing,
}

/// Finds the file that `execvp` runs for `command`: the first executable file with that name in `PATH`, or the path itself.
pub fn find(command: &OsStr) -> Found {
    if command.as_bytes().contains(&b'/') {
        return look_at(PathBuf::from(command));
    }
    // The C library's default if `PATH` is not set.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut found = Found::Nothing;
    // A folder that cannot be read counts as empty, as for the shell.
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

/// The reason why the library will not see the calls of the program in this file; `None` if it will, or if the file's kind is unknown.
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

/// As [`unseen`], without the check for privileges: for a running program its auxiliary vector answers that.
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

/// The library's machine number in ELF; `None` if unknown, and then the program's machine is not checked.
const MACHINE: Option<u64> = match () {
    () if cfg!(target_arch = "x86_64") => Some(62),
    () if cfg!(target_arch = "aarch64") => Some(183),
    () => None,
};

/// Decides by the ELF headers, which are little-endian as on the library's machines.
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

/// The table of section names, separated by zero bytes.
fn names_of_sections(head: &[u8; 64], read: impl Fn(u64, &mut [u8]) -> Option<()>) -> Option<Vec<u8>> {
    let (table, size) = (number::<8>(head, 40)?, number::<2>(head, 58)?);
    let mut header = [0u8; 64];
    read(table.checked_add(number::<2>(head, 62)?.checked_mul(size)?)?, &mut header)?;
    let mut names = vec![0; number::<8>(&header, 32)?.min(1 << 20) as usize];
    read(number::<8>(&header, 24)?, &mut names)?;
    Some(names)
}

/// True if a section name is Go's: its linker writes these sections even into stripped programs.
fn is_go(names: &[u8]) -> bool {
    names.split(|byte| *byte == 0).any(|name| matches!(name, b".go.buildinfo" | b".note.go.buildid"))
}

#[cfg(test)]
mod tests;
