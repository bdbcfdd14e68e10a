//! Towpath: wire.
