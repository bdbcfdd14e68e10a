//! Processes that may accept by an io_uring, which the library does not see: what a connector looks at before it connects to them.
//!
//! A process finds another by its number in `/proc`, and numbers belong to a PID namespace. So each process says in its hello which namespace it
//! is in and which number it has there, and a connector looks only at processes of its own namespace. A process that lies deceives only the
//! programs that connect to it, and each of them about its own connection.

use crate::pid_namespace::itself;
use control::credentials::has_own_proc;
use control::profile::Rings;
use control::{Itself, KernelReason};

/// Limit of descriptors checked, over all processes that may accept, before one connect: each takes some 10 µs.
const LOOKED_AT: usize = 128;

/// Why a connection to these processes, which have not yet waited for it by a call that the library sees, is left to the kernel: one has a
/// ring, by which it may accept, or this process may not find that out. `None`: no process has a ring.
pub fn reason_for_kernel(acceptors: &[Itself]) -> Option<KernelReason> {
    let mut left = LOOKED_AT;
    let own = itself().namespace;
    let is_visible = |acceptor: &Itself| own != 0 && acceptor.namespace == own && acceptor.pid > 0;
    if !acceptors.iter().all(is_visible) || !has_own_proc() {
        return Some(KernelReason::ListenerUnseen);
    }
    acceptors.iter().find_map(|acceptor| match has_ring(acceptor.pid, &mut left) {
        Ok(true) => Some(KernelReason::ListenerHasRing),
        Ok(false) => None,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Some(KernelReason::ListenerUnseen),
        // The process has ended, or no descriptor is free to look with.
        Err(_) => None,
    })
}

/// True when a ring is among the first `left` descriptors of process `pid`; counts `left` down.
fn has_ring(pid: i32, left: &mut usize) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        if *left == 0 {
            break;
        }
        *left -= 1;
        match std::fs::read_link(entry?.path()) {
            Ok(name) if name.as_os_str() == Rings::LINK => return Ok(true),
            // NotFound: the descriptor was closed meanwhile.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_of_this_pid_namespace_is_not_looked_at() {
        let own = itself();
        assert_eq!(own.pid, std::process::id() as i32);
        if !has_own_proc() {
            return println!("skipped: /proc is another namespace's");
        }
        assert_eq!(reason_for_kernel(&[own]), None);
        let unseen = Some(KernelReason::ListenerUnseen);
        // A process of another namespace that has this one's number, and those that cannot tell.
        for other in [Itself { namespace: own.namespace + 1, ..own }, Itself { namespace: 0, ..own }] {
            assert_eq!(reason_for_kernel(&[own, other]), unseen);
        }
        assert_eq!(reason_for_kernel(&[Itself { pid: 0, ..own }]), unseen);
    }
}
