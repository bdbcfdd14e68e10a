//! Towpath: control.
