//! Towpath: fastpath.
