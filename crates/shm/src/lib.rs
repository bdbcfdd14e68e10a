//! Towpath: shm.
