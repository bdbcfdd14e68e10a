//! Programs in C: the header is strict C99 and C++, the example serves an ordinary client, and misuse is answered.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../ring/tests/common/mod.rs"]
mod common;

use common::{built, has, kv, output, service, service_with};
use service::{Options, Sharing};
use std::path::{Path, PathBuf};
use std::process::Command;

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The folder with `libtowpath.so`, which Cargo has built for this test or with the workspace.
fn libraries() -> PathBuf {
    let found =
        [built().join("deps"), built()].into_iter().filter(|folder| folder.join("libtowpath.so").exists());
    found
        .max_by_key(|folder| folder.join("libtowpath.so").metadata().unwrap().modified().unwrap())
        .expect("libtowpath.so is built with the workspace: cargo build -p towpath-ring-c")
}

fn compile(compiler: &str, source: &Path, to: &Path, more: &[&str]) {
    let status = Command::new(compiler)
        .args(STRICT)
        .args(more)
        .arg("-I")
        .arg(here("include"))
        .arg(source)
        .arg("-o")
        .arg(to)
        .status()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(status.success(), "{compiler} {}", source.display());
}

/// A program against the library.
fn program(folder: &Path, source: &str) -> PathBuf {
    let libraries = libraries();
    let (search, run) = (format!("-L{}", libraries.display()), format!("-Wl,-rpath,{}", libraries.display()));
    let to = folder.join(Path::new(source).file_stem().unwrap());
    // The library is needed although it comes before what uses it.
    let library = ["-Wl,--no-as-needed", &search, &run, "-ltowpath"];
    compile("cc", &here(source), &to, &[&["-std=gnu99", "-O1", "-pthread"], &library[..]].concat());
    to
}

#[test]
fn the_header_is_strict_c99_and_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("only.c");
    std::fs::write(&source, "#include <towpath.h>\nint main(void) { return 0; }\n").unwrap();
    let object = folder.path().join("only.o");
    compile("cc", &source, &object, &["-std=c99", "-c"]);
    if has("c++") {
        compile("c++", &source, &object, &["-x", "c++", "-std=c++11", "-c"]);
    }
}

/// Every call that the header declares is in the library, and the library exports no other: it replaces no symbol.
#[test]
fn the_library_exports_the_calls_of_the_header_only() {
    let mut list = Command::new("nm");
    list.args(["-D", "--defined-only", "-j"]).arg(libraries().join("libtowpath.so"));
    let text = list.output().expect("nm comes with the C compiler").stdout;
    let mut exported: Vec<_> = String::from_utf8(text).unwrap().lines().map(str::to_owned).collect();
    let header = std::fs::read_to_string(here("include/towpath.h")).unwrap();
    let mut declared: Vec<_> = header
        .split("towpath_")
        .skip(1)
        .filter_map(|rest| {
            let (name, _) = rest.split_once('(')?;
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_').then(|| format!("towpath_{name}"))
        })
        .collect();
    declared.sort();
    declared.dedup();
    exported.sort();
    assert_eq!(exported, declared);
}

/// `make install` puts library, header and pkg-config file where `pkg-config` finds them.
#[test]
fn an_installed_library_is_found_by_pkg_config() {
    if !has("pkg-config") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let built = folder.path().join("built");
    std::fs::create_dir(&built).unwrap();
    std::fs::copy(libraries().join("libtowpath.so"), built.join("libtowpath.so")).unwrap();
    for other in ["towpath", "libtowpath_preload.so"] {
        std::fs::write(built.join(other), "").unwrap();
    }
    let prefix = folder.path().join("prefix");
    let install = here("../../scripts/install");
    output(Command::new(install).arg(&built).env("PREFIX", &prefix).env_remove("DESTDIR"));
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "towpath"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = output(&mut ask);
    let program = folder.path().join("echo");
    let mut compiler = Command::new("cc");
    compiler.args(STRICT).arg(here("examples/echo.c")).args(flags.split_whitespace()).arg("-o").arg(&program);
    assert!(compiler.status().unwrap().success(), "{flags}");
    let usage =
        Command::new(program).arg("nowhere").env("LD_LIBRARY_PATH", prefix.join("lib")).output().unwrap();
    assert!(String::from_utf8_lossy(&usage.stderr).starts_with("usage:"));
}

#[test]
fn echo_in_c_serves_an_ordinary_client() {
    let place = service();
    let echo = program(place.folder.path(), "examples/echo.c");
    let server = place.start(Command::new(echo).args(["127.0.0.1", "0"]));
    let client = place.compile_at(&here("../ring/tests/c/asks.c"));
    let port = server.address.port().to_string();
    assert_eq!(output(place.ordinary(client).arg(port)), "all came back\n");
}

/// Connections go from sockets to a ring and back while the preload library carries the sockets.
#[test]
fn a_connection_goes_from_sockets_to_a_ring_and_back() {
    let place = service();
    let attach = program(place.folder.path(), "tests/c/attach.c");
    assert_eq!(output(&mut place.ordinary(attach)), "");
}

/// The same where the service copies the bytes before, too.
#[test]
fn a_relayed_connection_goes_from_sockets_to_a_ring_and_back() {
    let place = service_with(Options { sharing: Some(Sharing::Never), ..Options::default() });
    let attach = program(place.folder.path(), "tests/c/attach.c");
    assert_eq!(output(&mut place.ordinary(attach)), "");
}

#[test]
fn the_checked_mode_finds_uses_of_released_bytes() {
    let place = service();
    let checked = program(place.folder.path(), "tests/c/checked.c");
    let mut command = Command::new(checked);
    assert_eq!(output(command.env("TOWPATH_CONTROL", &place.control).env("TOWPATH_CHECK", "1")), "");
}

#[test]
fn kv_in_c_answers_redis_cli() {
    if !has("redis-cli") {
        return;
    }
    let place = service();
    let program = program(place.folder.path(), "examples/kv.c");
    let server = place.start(Command::new(program).args(["127.0.0.1", "0"]));
    kv::answers_redis_cli(&place, &server);
    // The table grows.
    kv::serves_redis_benchmark(&place, &server, ["-r", "5000"]);
}

#[test]
fn misuse_and_a_forked_child_get_errors() {
    let place = service();
    let misuse = program(place.folder.path(), "tests/c/misuse.c");
    assert_eq!(output(Command::new(misuse).env("TOWPATH_CONTROL", &place.control)), "");
}

/// Requests of RESP2 and of HTTP, a last one, and how its answer begins.
const RESP: [&str; 4] = [
    "*1\r\n$4\r\nPING\r\n",
    "+PONG\r\n",
    "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n",
    "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n",
];
const HTTP: [&str; 4] = [
    "GET /ok HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/1.1 200 OK\r\n",
    "GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "GET /none HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\nbody of four",
];

/// A peer that shares memory with a server changes bytes while the server looks at them: what was checked is what is used.
#[test]
fn a_peer_that_changes_bytes_while_they_are_looked_at_fools_no_parser() {
    let place = service();
    let scribbles = program(place.folder.path(), "tests/c/scribbles.c");
    let kv_in_c = program(place.folder.path(), "examples/kv.c");
    let mut servers = vec![(place.start(Command::new(kv_in_c).args(["127.0.0.1", "0"])), RESP)];
    let examples = built().join("examples");
    if examples.join("kv").exists() && examples.join("http").exists() {
        servers.push((place.example("kv"), RESP));
        let http =
            place.start(Command::new(examples.join("http")).arg("127.0.0.1:0").arg(place.folder.path()));
        servers.push((http, HTTP));
    } else {
        eprintln!("only kv in C: the examples in Rust are built with the workspace");
    }
    for (server, texts) in &servers {
        let port = server.address.port().to_string();
        let mut command = Command::new(&scribbles);
        assert_eq!(output(command.arg(port).args(texts).env("TOWPATH_CONTROL", &place.control)), "");
    }
}
