//! `libtowpath.so`: crate `ring` for programs in C. `include/towpath.h` declares what is here, `docs/ring-c.md` describes it. No symbol of
//! the C library is replaced.

mod address;
mod calls;
mod opaque;
mod rooms;
mod sockets;
mod why;
