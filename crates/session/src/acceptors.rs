//! Processes that may accept by an io_uring, which the library does not see: what a connector looks at before it connects to them.

use control::KernelReason;
use control::profile::Rings;

/// Limit of descriptors checked, over all processes that may accept, before one connect: each takes some 10 µs.
const LOOKED_AT: usize = 128;

/// Why a connection to these processes, which have not yet waited for it by a call that the library sees, is left to the kernel: one has a
/// ring, by which it may accept, or this process may not find that out. `None`: no process has a ring. `asker`: this process's ID as the
/// service sees it; if it differs from ours, the IDs come from another PID namespace.
pub fn reason_for_kernel(asker: i32, acceptors: &[i32]) -> Option<KernelReason> {
    let is_known = rustix::process::getpid().as_raw_nonzero().get() == asker;
    let mut left = LOOKED_AT;
    let look = |pid: &i32| match has_ring(*pid, &mut left) {
        Ok(true) => Some(KernelReason::ListenerHasRing),
        Ok(false) => None,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Some(KernelReason::ListenerUnseen),
        // The process has ended, or no descriptor is free to look with.
        Err(_) => None,
    };
    if is_known { acceptors.iter().find_map(look) } else { Some(KernelReason::ListenerUnseen) }
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
