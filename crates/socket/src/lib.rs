//! Towpath: socket.
