//! The algorithms over a bottleneck in virtual time: the real endpoint, machine and agent, and a model of the path in packets.

mod aggregate;
mod classic;
mod delay;
mod lengths;
mod model;
mod nimbus;
mod rate;
mod slow_start;
