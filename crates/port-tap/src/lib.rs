//! Towpath: port-tap.
