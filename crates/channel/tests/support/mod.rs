//! What the tests of whole sessions share: a transport in memory with seeded faults, and two hosts with applications.

pub mod apps;
pub mod lossy;
pub mod world;
