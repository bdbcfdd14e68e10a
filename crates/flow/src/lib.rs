//! Towpath: flow.
