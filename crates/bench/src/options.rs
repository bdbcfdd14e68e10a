//! The arguments that every measurement takes.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// How to measure and how to print.
#[derive(Parser, Clone, Debug)]
#[command(no_binary_name = true, disable_version_flag = true)]
pub struct Options {
    /// Print one JSON object per measurement.
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Fewer and shorter runs: for a look, not for a result.
    #[arg(long)]
    pub quick: bool,
    /// Print the tables as Markdown, as they stand in docs/evaluation.md.
    #[arg(long)]
    pub markdown: bool,
    /// Also put the tables into this file, between its marks: `--into docs/evaluation.md`.
    #[arg(long, value_name = "FILE")]
    pub into: Option<PathBuf>,
    /// Runs of each case and system; each has a seed of its own where one is needed [default: 5, loss: 20, with --quick 3].
    #[arg(long, visible_alias = "seeds", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: Option<u16>,
    /// Length of one run, about [default: 2, with --quick 0.7; loss: 150 round trips, at least 1, with --quick half].
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub seconds: Option<f64>,
    /// The `towpath` program to measure [default: this one, else the one beside it].
    #[arg(long, value_name = "PATH")]
    pub towpath: Option<PathBuf>,
}

impl Options {
    /// The options of the demo: quick, otherwise the defaults.
    pub(crate) fn default_for_demo() -> Self {
        Self {
            json: false,
            quick: true,
            markdown: false,
            into: None,
            runs: None,
            seconds: None,
            towpath: None,
        }
    }

    /// The number of runs of each case and system.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.map_or(if self.quick { 3 } else { 5 }, usize::from)
    }

    /// The length of one run in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.7 } else { 2.0 })
    }
}

/// Parses the arguments after the measurement's name. The inner error is the exit code after `--help`.
///
/// # Errors
/// A message about the wrong argument.
pub(crate) fn parse_for<T: Parser>(name: &str, args: &[String]) -> anyhow::Result<Result<T, ExitCode>> {
    let command = T::command().bin_name(format!("towpath bench {name}"));
    let parsed = command.try_get_matches_from(args).and_then(|m| T::from_arg_matches(&m));
    match parsed {
        Ok(options) => Ok(Ok(options)),
        Err(error) if error.use_stderr() => Err(anyhow::anyhow!("{}", error.render())),
        Err(help) => {
            help.print()?;
            Ok(Err(ExitCode::SUCCESS))
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number > 0.0 && number <= 3600.0 { Ok(number) } else { Err("between 0 and 3600".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> anyhow::Result<Result<Options, ExitCode>> {
        let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
        parse_for("redis", &args)
    }

    #[test]
    fn quick_shortens_and_an_explicit_number_rules() {
        let quick = parse(&["--quick", "--json"]).unwrap().unwrap();
        assert_eq!((quick.runs(), quick.json), (3, true));
        let explicit = parse(&["--quick", "--runs", "9", "--seconds", "0.5"]).unwrap().unwrap();
        assert_eq!((explicit.runs(), explicit.seconds()), (9, 0.5));
    }

    #[test]
    fn wrong_arguments_are_an_error_and_help_is_not() {
        assert!(parse(&["--seconds", "-1"]).is_err());
        assert!(parse(&["--jsn"]).is_err());
        assert!(parse(&["--json", "--markdown"]).is_err());
    }
}
