//! Towpath: service.
