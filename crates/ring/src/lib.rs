//! Connections for programs that are written for Towpath: no descriptor for each connection, no copy on the program's side, one barrier for
//! a batch. The same flows as those of `socket`, by another door.
//!
//! ```text
//!   Service ── ring() ──► Ring (one for each thread) ── listen, connect ──► Handle ── conn ──► Conn
//!                          │ wait, poll: events              slot + generation      read, reserve, finish, close
//!                          └ flush, timer, waker, descriptor
//!
//!   read:   the peer's bytes where they lie    ....consumed|######## unread ########|......
//!                                                          └ spans ┘ consume(n) gives the space back
//!   write:  this process's own ring            ##### sent #|## committed ##|== reserved ==|
//!                                                          └ flush publishes ┘
//! ```
//! A server is a loop: [`Ring::wait`], and for each [`Event`] a read, some work, a [`Conn::reserve`] and a commit. What the loop commits is
//! published at the next `wait`, all connections behind one barrier. `docs/ring.md` is the tutorial.
//!
//! Errors are values of [`Error`]; each names its cause. A [`Handle`] of a closed connection is [`Error::Gone`], never another's connection.
//! A ring belongs to one thread at a time and to the process that made it: in a forked child every call says [`Error::NotYours`].

mod attach;
mod bells;
pub mod check;
mod conn;
mod connect;
mod counters;
mod error;
mod event;
mod flush;
mod handle;
mod listen;
mod news;
mod options;
mod raw;
mod read;
mod ring;
mod service;
mod table;
mod timers;
mod wait;
mod waker;
mod write;

pub use conn::{Conn, Info, Setting};
pub use counters::Counters;
pub use error::Error;
pub use event::{Event, Kind};
pub use handle::Handle;
pub use options::{ConnectOptions, ListenOptions, Options};
pub use read::{Read, Span};
pub use ring::Ring;
pub use service::Service;
pub use waker::Waker;
pub use write::Write;
