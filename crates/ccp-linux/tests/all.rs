//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#[cfg(feature = "load")]
mod conformance;
#[cfg(feature = "load")]
mod flows;
#[cfg(feature = "load")]
#[path = "../../ccp-vm/tests/random.rs"]
mod random;
mod sources;
