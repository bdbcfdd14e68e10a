//! The endpoint of a datapath towards agents of congestion control (CCP paper, section 5): which agent has which flow, what goes to agents and
//! when, what they may ask for, and what happens when one dies or stops reading. It owns no sockets, reads no clock, and runs no program.
//!
//! ```text
//!            open, close, report                       datagrams, through `send` of drive()
//! flows  ------------------------->  +----------+  ------------------------->  agents
//! (slow                              | Endpoint |                              (UNIX datagram sockets,
//!  path) <-------------------------  +----------+  <-------------------------   bound to a path each)
//!            poll_command                    ^         receive(sender, bytes), agent_died
//!                                            | now
//! ```
//! After each input, and at [`Endpoint::next_deadline`], call [`Endpoint::drive`] and then take all commands and notices.
//!
//! # A flow
//! [`Endpoint::open`] gives it a number. It stays on the default algorithm until its agent has chosen a program: [`Command::Program`]. Its
//! reports go by [`Endpoint::report`], one at a time: after one was taken, the datapath keeps the next, and merges
//! later ones into it (`ccp_vm::Machine`), until [`Command::Accept`]. So a report is never lost and never sent twice, and reports merge when
//! agents or the budget are slow. All flows take turns in one queue.
//!
//! # An agent
//! Agents are configured by address ([`Endpoint::add_agent`]). READY is sent again and again until the first datagram comes, so either
//! side may start first. The credentials of each datagram are checked; the address, and a process of an allowed user, make an agent. A
//! process of another id at the same address is another agent. An agent of root sees all flows, others those of their own user.
//!
//! When its process dies, all its flows are back on the default at once. When its socket is full, a flow with a report that finds no room falls
//! back after 10 ms or three round trips, whichever is longer. When an agent comes (back), all its flows are told to it under new numbers,
//! within the budget; answers to old numbers are dropped and counted.
#![forbid(unsafe_code)]

mod agent;
mod budget;
mod command;
mod config;
mod endpoint;
mod flow;
mod inbound;
mod notice;
mod outbound;

pub use ccp_vm::Changes;
pub use command::{Command, Reason};
pub use config::{Config, GRACE_MIN, KNOCK, KNOCK_AGAIN, NOTICES_MAX, PROGRAMS_MAX};
pub use endpoint::{Endpoint, NotTaken, TooManyFlows};
pub use flow::{FlowId, NewFlow, Standing};
pub use inbound::Sender;
pub use notice::{Counters, Notice};
pub use outbound::Sent;
