//! Towpath: preload.
