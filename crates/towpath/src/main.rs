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
mod place;
mod process;
mod program;
mod run;
mod script;
mod sim;
mod ss;
mod table;
mod target;
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
    /// Control socket of the service [default: this user's service, else this user's private one, else the machine's]
    #[arg(long, env = "TOWPATH_CONTROL", value_name = "PATH")]
    control: Option<PathBuf>,
}

impl Where {
    fn path(&self) -> PathBuf {
        let named = self.control.clone().filter(|path| !path.as_os_str().is_empty());
        named.or_else(place::found).or_else(place::left).unwrap_or_else(control::own_control_path)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a service for the programs of this host
    #[command(after_help = up::SHORT_HELP, after_long_help = up::HELP)]
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
    #[command(after_help = ss::HELP)]
    Ss(ss::Ss),
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
    control::known::unknown_variables().iter().for_each(|told| eprintln!("towpath: {told}"));
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
        Command::Ss(ss) => ss.execute(),
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
    use control::{known, profile};

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

    /// The variables of a command and of its subcommands.
    fn variables_of(command: &clap::Command) -> Vec<String> {
        let own = command.get_arguments().filter_map(|argument| argument.get_env());
        let own = own.map(|name| name.to_string_lossy().into_owned());
        own.chain(command.get_subcommands().flat_map(variables_of)).collect()
    }

    #[test]
    fn every_variable_of_the_command_line_is_known_and_every_known_one_is_read() {
        let mut cli = Cli::command();
        cli.build();
        let read = variables_of(&cli);
        for name in &read {
            assert!(known::VARIABLES.contains(&name.as_str()), "{name} is missing in the list of variables");
        }
        let of_profiles = profile::PROFILES.iter().flat_map(|p| p.knobs).map(|knob| knob.variable);
        let of_library = [
            profile::PROFILE_ENV,
            profile::REQUIRE_ENV,
            profile::IO_URING_ENV,
            profile::CHANNEL_ENV,
            control::TRUST_UID_ENV,
            control::VERSIONS_ENV,
            "TOWPATH_CHECK",
            "TOWPATH_DISABLE",
            "TOWPATH_LOG",
            "TOWPATH_PRELOAD",
            "TOWPATH_PYTHON",
        ];
        let others: Vec<&str> = of_profiles.chain(of_library).collect();
        for name in known::VARIABLES {
            let is_read = others.contains(&name) || read.iter().any(|read| read == name);
            assert!(is_read, "{name} is in the list of variables, and nothing reads it");
        }
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
