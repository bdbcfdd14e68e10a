//! CCP's datapath in the Linux kernel, by BPF struct_ops (6.10 and later): the kernel's own TCP runs an agent's programs. The semantics of
//! programs are those of `ccp-vm`; agents are those of the service, over the same sockets.
//!
//! ```text
//! agents <--datagrams--> Agents -- ccp::Endpoint -- Bridge <--ring buffer-- flows (bpf/ccp.bpf.c, bpf/vm.h)
//!                                                      \-- slots, programs --> (maps)
//! ```
//! `bpf/` has the kernel's half in C and the object that `scripts/bpf` builds of it. Without the feature `load` this crate contains only
//! what needs no libbpf: rules, statuses, and [`support`], which then says how to get the rest.
//!
//! # Deaths
//! A flow falls back when its agent dies (the bridge sees it by a pidfd). When the bridge itself dies or is stopped for 1.5 s, each flow goes
//! back to the algorithm that it had before, at its next acknowledgement and without any help: the kernel's programs look at a deadline.
#![forbid(unsafe_code)]

#[cfg(feature = "load")]
mod agents;
#[cfg(feature = "load")]
mod bridge;
#[cfg(feature = "load")]
mod kernel;
#[cfg(feature = "load")]
mod layout;
mod rule;
mod status;
mod support;

#[cfg(feature = "load")]
pub use bridge::{BEAT, Bridge, BridgeError, PATIENCE, Setup};
#[cfg(feature = "load")]
pub use kernel::KernelError;
pub use rule::{BadRule, RULES_MAX, Rule};
pub use status::{AgentStatus, FlowStatus, Status};
pub use support::{Unsupported, Version, support};

/// The name of the algorithm in the kernel, unless another is given.
pub const NAME: &str = "towpath_ccp";
