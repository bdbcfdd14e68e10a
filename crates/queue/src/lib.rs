//! Towpath: queue.
