//! The measurements as a program of their own, without the other subcommands of `towpath`: `towpath-bench NAME ...`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    // `peer` starts its own program with `bench` as first argument, whether that is `towpath` or `towpath-bench`.
    if args.first().is_some_and(|first| first == "bench") {
        args.remove(0);
    }
    let name = if args.is_empty() { String::new() } else { args.remove(0) };
    let result =
        if name == "demo" { bench::demo().map(|()| ExitCode::SUCCESS) } else { bench::run(&name, &args) };
    result.unwrap_or_else(|error| {
        eprintln!("towpath-bench: {error:#}");
        ExitCode::FAILURE
    })
}
