//! The command line: starts a service, sends it requests, and starts programs with the preload library.
#![forbid(unsafe_code)]

mod advice;
mod ask;
mod cc;
mod cc_check;
mod cc_kernel;
mod cc_record;
mod cc_try;
mod channels;
mod cores;
mod cycles;
mod explain;
mod link_command;
mod manager;
mod numbers;
mod process;
mod program;
mod run;
mod script;
mod sim;
mod table;
mod up;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// TCP as an operating-system service: applications keep their sockets, the bytes go through shared memory.
#[derive(Debug, Parser)]
#[command(
    name = "towpath",
    version,
    max_term_width = 110,
    after_help = "Start with:\n  towpath run -- redis-server\n  \
    towpath run -- redis-benchmark\n\nThe first `run` starts a private service that both share and that leaves with \
    the last of them."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Where the service listens.
#[derive(Clone, Debug, clap::Args)]
struct Where {
    /// Control socket of the service [default: as `towpath up` without --control]
    #[arg(long, env = "TOWPATH_CONTROL", value_name = "PATH")]
    control: Option<PathBuf>,
}

impl Where {
    fn path(&self) -> PathBuf {
        self.control.clone().unwrap_or_else(control::default_control_path)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a service for the programs of this host
    #[command(
        after_help = "Examples:\n  towpath up                          stay in the foreground, for this host's \
        own connections\n  towpath up --detach                 go to the background once it works\n  towpath up \
        --port tap --address 10.9.0.2/24 --host-address 10.9.0.1/24\n  towpath up \
        --config /etc/towpath.toml --log debug\n\nThe file has the same keys as the flags, with _ for -: \
        `region_mib = 64`. A flag wins over its\nvariable, the variable over the file."
    )]
    Up(Box<up::Up>),
    /// Stop the running service
    #[command(
        after_help = "Example:\n  towpath down\n\nAccelerated connections are reset; new ones go to the kernel."
    )]
    Down {
        #[command(flatten)]
        place: Where,
    },
    /// Have the service read its policy file anew
    #[command(
        after_help = "Example:\n  towpath reload\n\nThe file: `towpath up --policy FILE`. A file with a mistake changes nothing, and the mistake is \
        shown. What listens and\nwhat is connected stays; new listeners and connections are decided by the new rules."
    )]
    Reload {
        #[command(flatten)]
        place: Where,
    },
    #[command(flatten)]
    Launch(Launch),
    /// List the sockets that are accelerated
    #[command(
        after_help = "Examples:\n  towpath ss\n  towpath ss --json | jq '.[] | select(.state == \"LISTEN\")'"
    )]
    Ss {
        #[command(flatten)]
        place: Where,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Show what was accelerated and what fell back, and why
    #[command(after_help = cycles::HELP)]
    Stat {
        #[command(flatten)]
        place: Where,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
        /// Show instead where the time of threads goes, module by module; with a word first begin, or then end, to count
        #[arg(long, value_enum, value_name = "WORD", num_args = 0..=1, default_missing_value = "show")]
        cycles: Option<cycles::Word>,
    },
    /// Say of each socket whether it is accelerated, why not, and what limits it now
    #[command(after_help = explain::HELP)]
    Explain(explain::Explain),
    /// Show the channels to other hosts: sessions, sockets on each, credit, queues, and why
    #[command(
        after_help = "Examples:\n  towpath channels\n  towpath channels --json | jq '.sessions[].channels'\n\n`towpath up --channel-peers` \
        turns channels on: docs/channels.md."
    )]
    Channels {
        #[command(flatten)]
        place: Where,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Show which cores serve flows, and why; change how many do
    #[command(after_help = cores::HELP)]
    Cores(cores::Cores),
    /// List and change what chooses congestion control, live if asked; programs for the kernel's own TCP
    #[command(after_help = cc::HELP)]
    Cc(cc::Cc),
    /// Emulate a link between two interfaces: rate, delay, queue, marks, loss and other mishaps
    #[command(after_help = link_command::HELP)]
    Link(Box<link_command::LinkCommand>),
    /// Run redis through Towpath and on the kernel, and show what it bought
    #[command(
        after_help = "Example:\n  towpath demo\n\nTakes half a minute, needs no root, leaves nothing behind."
    )]
    Demo,
    /// Measure, with the kernel as peer in the same run
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  towpath bench redis --quick\n  towpath bench all --json\n  towpath bench --help"
    )]
    Bench {
        /// Name of the measurement and its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "NAME [OPTIONS]")]
        args: Vec<String>,
    },
    /// Run packetdrill scripts against the stack, in virtual time
    #[command(
        after_help = "Examples:\n  towpath script tests/scripts/*/*.pkt\n  towpath script -v --pcap out.pcapng \
        handshake.pkt\n\nExit status: 0 when all passed, 1 when one failed, 2 when none failed and one needs what is not \
        there.\nThe language: docs/scripts.md."
    )]
    Script(script::Script),
    /// Run hosts, networks and applications in virtual time, with everything checked
    #[command(
        after_help = "Examples:\n  towpath sim                              one random run, seed 1\n  \
        towpath sim --seeds 2000                 two thousand of them\n  towpath sim lossy --seed 7 --pcap out.pcapng\n  \
        towpath sim churn --connections 1000000\n  towpath sim --list\n\nOne seed is one run, on every machine. A run fails \
        when a stream is not what was sent, a\nconnection hangs, a window shrinks, data goes beyond it, or anything \
        is left at the end;\nthe failure prints the command that replays it."
    )]
    Sim(sim::Sim),
    /// Print the versions of program and service
    #[command(after_help = "Example:\n  towpath version")]
    Version,
}

/// The command line of `towpath run` alone. Programs wait for their launcher, and to describe all commands costs it 76 page faults.
#[derive(Debug, Parser)]
#[command(name = "towpath", version, max_term_width = 110)]
struct Launcher {
    #[command(subcommand)]
    command: Launch,
}

#[derive(Debug, Subcommand)]
enum Launch {
    /// Run a program with accelerated sockets
    #[command(after_help = run::help())]
    Run(run::Run),
}

fn parse() -> Command {
    if std::env::args_os().nth(1).is_some_and(|word| word == "run") {
        return Command::Launch(Launcher::parse().command);
    }
    Cli::parse().command
}

fn main() -> ExitCode {
    let done = match parse() {
        Command::Up(up) => up.execute(),
        Command::Down { place } => ask::down(&place.path()),
        Command::Reload { place } => ask::reload(&place.path()),
        Command::Launch(Launch::Run(run)) => {
            return run.execute().unwrap_or_else(|e| {
                failed(&e);
                ExitCode::from(run::FAILED)
            });
        }
        Command::Ss { place, json } => table::sockets(&place.path(), json),
        Command::Stat { place, json, cycles: Some(word) } => cycles::show(&place.path(), json, word),
        Command::Stat { place, json, cycles: None } => table::statistics(&place.path(), json),
        Command::Explain(explain) => explain.execute(),
        Command::Channels { place, json } => channels::show(&place.path(), json),
        Command::Cores(cores) => cores.execute(),
        Command::Cc(cc) => cc.execute(),
        Command::Link(link) => link.execute(),
        Command::Demo => bench::demo(),
        Command::Bench { args } => return measure(&args),
        Command::Script(script) => return script.execute().unwrap_or_else(|e| failed(&e)),
        Command::Sim(sim) => sim.execute(),
        Command::Version => table::print(&format!(
            "towpath {} (control protocol {}, memory layout {})",
            env!("CARGO_PKG_VERSION"),
            control::PROTOCOL,
            service::LAYOUT,
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => failed(&e),
    }
}

/// A measurement returns its own exit code: it may print a result and still have failures.
fn measure(args: &[String]) -> ExitCode {
    let (name, rest) = args.split_first().map_or(("--help", args), |(name, rest)| (name.as_str(), rest));
    bench::run(name, rest).unwrap_or_else(|e| failed(&e))
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("towpath: {error:#}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_launcher_understands_run_as_the_whole_command_line_does() {
        let [whole, alone] = [Cli::command(), Launcher::command()].map(|mut command| {
            command.build();
            let run = command.find_subcommand_mut("run").unwrap();
            let arguments = run.get_arguments().map(|argument| format!("{argument:?}")).collect::<Vec<_>>();
            (run.render_long_help().to_string(), run.render_usage().to_string(), arguments)
        });
        assert_eq!(whole, alone);
        let words = ["towpath", "run", "--require", "--", "redis-server", "--port", "7000"];
        let Command::Launch(Launch::Run(whole)) = Cli::parse_from(words).command else {
            panic!("it is `run`")
        };
        let Launch::Run(alone) = Launcher::parse_from(words).command;
        assert_eq!(format!("{whole:?}"), format!("{alone:?}"));
    }

    #[test]
    fn the_help_of_every_subcommand_has_examples() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        cli.build();
        for command in cli.get_subcommands_mut().filter(|command| command.get_name() != "help") {
            let text = command.render_long_help().to_string();
            let example = format!("\n  towpath {}", command.get_name());
            assert!(text.contains("Example") && text.contains(&example), "{text}");
        }
    }
}
