//! Towpath: every measurement, with its peers.
