//! Towpath: port.
