//! The log of an agent: events with fields, each of which prints as one line of `name=value` pairs.

use std::fmt;
use std::net::SocketAddrV4;

use base::Instant;

use crate::algorithm::FlowKey;

/// Something that happened, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The time of the input that led to it.
    pub at: Instant,
    /// The flow that it is about, if it is about one.
    pub flow: Option<FlowKey>,
    /// What happened, with its details.
    pub what: What,
}

/// What an agent tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A datapath has sent its first datagram; it got all programs.
    DatapathCame {
        /// The path of its socket.
        address: Vec<u8>,
    },
    /// A datapath has started anew or cannot be reached; so many flows are over.
    DatapathGone {
        /// The number of its flows.
        flows: usize,
    },
    /// A flow has begun.
    Opened {
        /// The algorithm that serves it.
        algorithm: String,
        /// The algorithm that it asked for; another one than `algorithm`: the agent has none of that name.
        asked: String,
        /// The address of this host.
        source: SocketAddrV4,
        /// The address of the peer.
        destination: SocketAddrV4,
    },
    /// A flow got another program.
    Program {
        /// The name of the program.
        name: String,
    },
    /// A handler failed or panicked. The flow has Reno in the datapath from now on.
    Failed {
        /// The algorithm of the flow.
        algorithm: String,
        /// The handler: `new_flow`, `on_report`, `on_timer` or `close`.
        handler: &'static str,
        /// The text of its error, or of its panic.
        why: String,
    },
    /// A flow is over.
    Closed {
        /// Reports that it sent.
        reports: u64,
    },
    /// A datagram was not understood, or not expected.
    Misunderstood {
        /// What is wrong with it.
        why: String,
    },
    /// What an algorithm wants to have in the log ([`Datapath::note`](crate::Datapath::note)).
    Note {
        /// The algorithm's own word for it.
        text: String,
        /// Values with their names.
        values: Vec<(String, u64)>,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.at.as_us();
        write!(to, "t={}.{:06}", us / 1_000_000, us % 1_000_000)?;
        if let Some(flow) = self.flow {
            write!(to, " flow={flow}")?;
        }
        match &self.what {
            What::DatapathCame { address } => {
                write!(to, " event=datapath address={}", quoted(&String::from_utf8_lossy(address)))
            }
            What::DatapathGone { flows } => write!(to, " event=datapath_gone flows={flows}"),
            What::Opened { algorithm, asked, source, destination } => write!(
                to,
                " event=opened algorithm={} asked={} source={source} destination={destination}",
                quoted(algorithm),
                quoted(asked)
            ),
            What::Program { name } => write!(to, " event=program name={}", quoted(name)),
            What::Failed { algorithm, handler, why } => write!(
                to,
                " event=failed algorithm={} handler={handler} why={}",
                quoted(algorithm),
                quoted(why)
            ),
            What::Closed { reports } => write!(to, " event=closed reports={reports}"),
            What::Misunderstood { why } => write!(to, " event=misunderstood why={}", quoted(why)),
            What::Note { text, values } => {
                write!(to, " event=note text={}", quoted(text))?;
                values.iter().try_for_each(|(name, value)| write!(to, " {name}={value}"))
            }
        }
    }
}

/// A value that a reader of the line can take apart: in quotation marks unless it is one plain word.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\');
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { format!("{text:?}") }
}
