//! What the library needs beside `libc` where glibc is older than 2.34: see `crates/session/src/old_libc.rs`. Newer ones have both libraries, too,
//! with nothing in them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        let needed = "-Wl,--push-state,--no-as-needed,-l:libdl.so.2,-l:libpthread.so.0,--pop-state";
        println!("cargo:rustc-cdylib-link-arg={needed}");
    }
}
