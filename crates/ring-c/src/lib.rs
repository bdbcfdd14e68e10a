//! `libtowpath.so`: crate `ring` for programs in C. `include/towpath.h` declares what is here, `docs/ring-c.md` describes it. No symbol of
//! the C library is replaced.

mod address;
mod calls;
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod old_libc;
mod opaque;
mod rooms;
mod sockets;
mod why;
