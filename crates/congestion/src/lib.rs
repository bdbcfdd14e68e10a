//! Towpath: congestion.
