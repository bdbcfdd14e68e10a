//! What the tests of whole sessions share: a transport in memory with seeded faults, and two hosts with applications.

#![allow(dead_code)] // Each program of tests uses a part.

pub mod apps;
pub mod lossy;
pub mod replay;
pub mod scene;
pub mod world;
