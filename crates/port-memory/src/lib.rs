//! Towpath: port-memory.
