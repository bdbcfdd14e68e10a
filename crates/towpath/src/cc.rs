//! `towpath cc`: congestion control by programs and agents.

use crate::cc_kernel;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct Cc {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Programs and agents for the kernel's own TCP
    #[command(after_help = cc_kernel::HELP)]
    Kernel(cc_kernel::Kernel),
}

impl Cc {
    pub fn execute(self) -> anyhow::Result<()> {
        match self.what {
            What::Kernel(kernel) => kernel.execute(),
        }
    }
}
