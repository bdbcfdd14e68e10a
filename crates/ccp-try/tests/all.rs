//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

mod buffers;
mod fidelity;
mod replay;
