//! What peer processes do: each role by its name, with its main function.

use crate::ccp_figures::agent;
use crate::ccp_kernel;
use crate::exchange::on_ring;
use crate::ring_idle::holder;
use crate::spikes::handover;
use crate::spikes::memory::holes;
use crate::tap::{forwarder, reflector};
use crate::{bulk, ring, sockets};
use anyhow::{Context, bail};
use control::Line;

/// The main function of a role.
type Role = fn(&Line) -> anyhow::Result<()>;

const ROLES: &[(&str, Role)] = &[
    (handover::ROLE, handover::far::main),
    (holes::ROLE, holes::main),
    (forwarder::ROLE, forwarder::main),
    (reflector::ROLE, reflector::main),
    (agent::ROLE, agent::main),
    (ccp_kernel::agent::ROLE, ccp_kernel::agent::main),
    (bulk::source::ROLE, bulk::source::main),
    (bulk::sink::ROLE, bulk::sink::main),
    (bulk::carrier::SINK, bulk::carrier::sink),
    (bulk::carrier::SOURCE, bulk::carrier::source),
    (sockets::ask::ROLE, sockets::ask::main),
    (ring::server::ROLE, ring::server::main),
    (on_ring::ROLE, on_ring::main),
    (holder::ROLE, holder::main),
];

/// The main function of a process that was started as a peer: runs the role that its arguments name.
///
/// # Errors
/// An unknown role, or an error of the role.
pub fn main(args: &[String]) -> anyhow::Result<()> {
    let wanted = args.first().map_or("", String::as_str);
    let Some((_, role)) = ROLES.iter().find(|(name, _)| *name == wanted) else {
        bail!("no role {wanted:?} for a peer process");
    };
    let input = rustix::io::dup(std::io::stdin()).context("a peer process needs its control line")?;
    role(&Line::new(input))
}
