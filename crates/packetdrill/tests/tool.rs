//! A C program that loads the shared object as packetdrill does and plays connections through its interface.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The shared object that Cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libtowpath_packetdrill") && name.ends_with(".so")
    };
    let beside = |folder: &Path| {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).filter(is_ours).collect()
    };
    let mut found: Vec<PathBuf> = beside(deps.parent().unwrap());
    found.extend::<Vec<PathBuf>>(beside(deps));
    found.sort_by_key(|path| path.metadata().unwrap().modified().unwrap());
    found.pop().expect("cargo builds the cdylib before the package's integration tests")
}

/// Compiled once for all tests.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/tool.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packetdrill-tool");
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
            .args([&program, &source])
            .arg("-ldl")
            .status()
            .expect("a C compiler is installed by `make setup`");
        assert!(status.success());
        program
    })
}

fn play(part: &str) {
    let mut child = Command::new(program())
        .arg(library())
        .arg(part)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out == "ok\n", "{part}: {}\n{out}{err}", output.status);
}

#[test]
fn handshake_data_and_close_pass_through_the_interface() {
    play("passive");
}

#[test]
fn time_passes_by_what_the_machine_waits_for_and_a_missing_packet_is_no_hang() {
    play("timers");
}

#[test]
fn waiting_call_ends_at_the_instant_at_which_it_can() {
    play("blocking");
}

#[test]
fn time_passes_while_the_driver_waits_outside_for_a_call() {
    play("waiting");
}

#[test]
fn machine_opens_connections_and_tells_epoll() {
    play("active");
}

#[test]
fn calls_past_the_interface_reach_the_machine_or_the_kernel() {
    play("interposed");
}
