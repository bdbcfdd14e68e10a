//! Towpath: slowpath.
