//! What a process is to the library: its forks, the descriptors that it passes on, the filters and limits that it sets itself, and the
//! ways by which it uses sockets past the library.

pub(crate) mod bpf;
pub mod fd_passing;
mod first_use;
pub mod fork;
pub mod io_uring;
pub mod rlimit_as;
pub mod seccomp;
pub(crate) mod visibility;
