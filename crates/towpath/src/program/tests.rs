//! Tests with hand-made files of each kind, and with files from the machine's compiler.

use super::*;

/// A temporary folder of one test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

/// An ELF file with one program header, which names the loader if there is one, and a table of section names.
fn elf(class: u8, loader: Option<&str>, sections: &str) -> Vec<u8> {
    let mut file = vec![0u8; 64 + 56 + 64];
    file[..4].copy_from_slice(b"\x7fELF");
    (file[4], file[5]) = (class, 1);
    let mut put = |at: usize, n: u64, len: usize| file[at..at + len].copy_from_slice(&n.to_le_bytes()[..len]);
    // Program headers at offset 64, section headers at 120: their sizes, counts, and the index of the names.
    for (at, n, len) in [
        (18, MACHINE.unwrap_or(0), 2),
        (32, 64, 8),
        (40, 120, 8),
        (54, 56, 2),
        (56, 1, 2),
        (58, 64, 2),
        (60, 1, 2),
        (62, 0, 2),
    ] {
        put(at, n, len);
    }
    let text = loader.unwrap_or("");
    put(64, if loader.is_some() { 3 } else { 1 }, 4);
    put(64 + 8, 184, 8);
    put(64 + 32, text.len() as u64, 8);
    put(120 + 24, 184 + text.len() as u64, 8);
    put(120 + 32, sections.len() as u64, 8);
    file.extend_from_slice(text.as_bytes());
    file.extend_from_slice(sections.as_bytes());
    file
}

const GLIBC: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2\0");
const PLAIN: &str = "\0.text\0.shstrtab\0";
const GO: &str = "\0.text\0.go.buildinfo\0.shstrtab\0";

#[test]
fn a_program_is_known_by_its_headers() {
    let folder = Folder::new();
    let mut foreign = elf(2, GLIBC, PLAIN);
    foreign[18] ^= 0xFF;
    let mut swapped = elf(2, GLIBC, PLAIN);
    swapped[5] = 2;
    let cases = [
        (elf(2, GLIBC, PLAIN), None),
        (elf(2, None, PLAIN), Some(Unseen::Static)),
        (elf(2, None, GO), Some(Unseen::Go)),
        (elf(2, GLIBC, GO), Some(Unseen::Go)),
        (elf(1, GLIBC, PLAIN), Some(Unseen::Narrow)),
        (elf(2, Some("/lib/ld-musl-x86_64.so.1\0"), PLAIN), Some(Unseen::Musl)),
        (foreign, MACHINE.map(|_| Unseen::Foreign)),
        (swapped, Some(Unseen::Foreign)),
        (b"nothing of the kind".to_vec(), None),
        (Vec::new(), None),
    ];
    for (i, (bytes, wanted)) in cases.iter().enumerate() {
        let path = folder.file(&i.to_string(), bytes, 0o755);
        assert_eq!(unseen(&path), *wanted, "case {i}");
    }
}

#[test]
fn cut_and_lying_files_are_no_panic() {
    let folder = Folder::new();
    let whole = elf(2, GLIBC, GO);
    for len in 0..whole.len() {
        let _ = unseen(&folder.file("cut", &whole[..len], 0o755));
    }
    let mut rng = base::Seed::new(3);
    for _ in 0..2_000 {
        let mut bytes = whole.clone();
        for _ in 0..4 {
            bytes[6 + rng.below(178) as usize] = rng.next_u64() as u8;
        }
        let _ = unseen(&folder.file("lie", &bytes, 0o755));
    }
}

#[test]
fn a_script_is_what_its_interpreter_is() {
    let folder = Folder::new();
    let program = folder.file("program", &elf(2, None, PLAIN), 0o755);
    let script = folder.file("script", format!("#! {} -x\n", program.display()).as_bytes(), 0o755);
    let second = folder.file("second", format!("#!{}", script.display()).as_bytes(), 0o755);
    assert_eq!((unseen(&script), unseen(&second)), (Some(Unseen::Static), Some(Unseen::Static)));
    let own = folder.0.path().join("loop");
    let own = folder.file("loop", format!("#!{}\n", own.display()).as_bytes(), 0o755);
    assert_eq!(unseen(&own), None);
}

#[test]
fn a_program_with_another_owners_rights_is_seen_by_its_mode() {
    let folder = Folder::new();
    let path = folder.file("own", &elf(2, GLIBC, PLAIN), 0o4755);
    assert_eq!(unseen(&path), None, "set to the very user that runs it");
    if geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(unseen(&path), Some(Unseen::Privileged));
        assert_eq!(unseen_format(&path), None);
    }
}

#[test]
fn what_the_compiler_links_statically_is_found_out() {
    let folder = Folder::new();
    let source = folder.file("true.c", b"int main(void) { return 0; }\n", 0o644);
    for (flags, wanted) in [(&["-static"][..], Some(Unseen::Static)), (&[], None)] {
        let out = folder.0.path().join("true");
        let made = std::process::Command::new("cc").args(flags).arg("-o").arg(&out).arg(&source).status();
        assert!(made.expect("a C compiler: scripts/setup").success());
        assert_eq!(unseen(&out), wanted);
    }
    assert_eq!(unseen(&std::env::current_exe().unwrap()), None);
}

#[test]
fn commands_are_found_as_the_shell_does() {
    assert!(matches!(find(OsStr::new("sh")), Found::Program(path) if path.is_absolute()));
    let folder = Folder::new();
    let plain = folder.file("plain", b"#!/bin/sh\n", 0o644);
    let nothing = folder.0.path().join("nothing");
    for (command, wanted) in [
        (OsStr::new("no-such-program-anywhere"), Found::Nothing),
        (nothing.as_os_str(), Found::Nothing),
        (plain.join("below").as_os_str(), Found::Nothing),
        (plain.as_os_str(), Found::NoProgram(plain.clone())),
        (folder.0.path().as_os_str(), Found::NoProgram(folder.0.path().to_owned())),
    ] {
        assert_eq!(find(command), wanted, "{}", command.display());
    }
}
