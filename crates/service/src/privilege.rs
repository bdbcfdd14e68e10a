//! What the service may do once it serves: the capabilities and system calls that [`table`] lists for its configuration, and nothing
//! else. Everything that needs more (opening the port, binding the control socket) is done before [`confine`].
//!
//! Capabilities, user, NoNewPrivs and filters belong to a thread, and a thread hands them to the threads that it starts. So there is one
//! rule: the control thread confines itself before it starts any other. (`SECCOMP_FILTER_FLAG_TSYNC` would do the same for the filter
//! alone, and to threads of a program that merely holds a service, as tests do.)
//!
//! ```text
//!   open control socket, port ─► confine ─► start cores, helpers ─► serve
//!   (capabilities at start)              (capabilities kept)
//! ```

mod filter;
mod page;
#[allow(unsafe_code)]
mod sys;
pub mod table;
#[cfg(test)]
mod tests;
mod user;

pub use page::page;
pub use user::User;

use crate::ServiceError;
use crate::config::Config;
use rustix::io::Errno;
use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// Gives up, for this thread and all that it starts from now on, what the service needs no more.
///
/// # Errors
/// The kernel refuses; nothing may be served then.
pub fn confine(config: &Config) -> Result<(), ServiceError> {
    let os = |doing| move |error| ServiceError::Os { doing, error };
    let kept = table::kept(config);
    empty_bounding_set();
    if let Some(user) = &config.user {
        become_user(user).map_err(os("become the user that --user names"))?;
    }
    keep_only(kept).map_err(os("give up capabilities"))?;
    thread::set_no_new_privs(true).map_err(os("give up gaining privileges"))?;
    if config.syscall_filter {
        filter::install().map_err(|error| ServiceError::Filter { error })?;
    }
    Ok(())
}

/// A thread without `CAP_SETPCAP` cannot change its bounding set. It gains nothing from it either: the set bounds what `execve` gives,
/// which NoNewPrivs ends.
fn empty_bounding_set() {
    let all = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    // The kernel says EINVAL for the first number that is no capability of its.
    let known = all.take_while(|one| thread::capability_is_in_bounding_set(*one).is_ok());
    for one in known {
        if let Err(error) = thread::remove_capability_from_bounding_set(one) {
            tracing::debug!("the bounding set stays as it is: {error}");
            return;
        }
    }
}

/// Supplementary groups go first, the user last: each step takes a capability that the last one ends.
fn become_user(user: &User) -> Result<(), Errno> {
    thread::set_thread_groups(&[])?;
    thread::set_thread_res_gid(user.gid, user.gid, user.gid)?;
    // Without it the permitted set would be emptied together with the effective one.
    thread::set_keep_capabilities(true)?;
    thread::set_thread_res_uid(user.uid, user.uid, user.uid)?;
    thread::set_keep_capabilities(false)
}

fn keep_only(kept: CapabilitySet) -> Result<(), Errno> {
    let kept = kept & thread::capabilities(None)?.permitted;
    // A capability leaves the ambient set together with the inheritable one.
    let inheritable = CapabilitySet::empty();
    thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })
}
