//! Limits the service to what it needs while it serves: the capabilities, system calls and files that [`table`] lists for its configuration.
//! Everything that needs more (opening the port, binding the control socket) is done before [`confine`].
//!
//! Capabilities, user, NoNewPrivs, Landlock and filters belong to a thread and are inherited by the threads that it starts. So the control thread
//! confines itself before it starts any other thread. (`SECCOMP_FILTER_FLAG_TSYNC` would extend the filter alone to all threads, even to
//! those of a program that only holds a service, as tests do.)
//!
//! ```text
//!   open control socket, port ─► confine ─► start cores, helpers ─► serve
//!   (capabilities at start)              (capabilities kept)
//! ```

mod filter;
mod landlock;
mod page;
#[allow(unsafe_code)]
mod sys;
pub mod table;
#[cfg(test)]
mod tests;
pub(crate) mod user;

pub use page::page;
pub use user::User;

use crate::ServiceError;
use crate::config::Config;
use rustix::io::Errno;
use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// Drops the privileges that the service no longer needs, for this thread and all threads that it starts from now on.
///
/// # Errors
/// The kernel refuses; the service must not serve then.
pub fn confine(config: &Config) -> Result<(), ServiceError> {
    let os = |doing| move |error| ServiceError::Os { doing, error };
    let kept = table::kept(config);
    empty_bounding_set();
    if let Some(user) = &config.user {
        become_user(user).map_err(os("become the user that --user names"))?;
    }
    keep_only(kept).map_err(os("give up capabilities"))?;
    thread::set_no_new_privs(true).map_err(os("give up gaining privileges"))?;
    landlock::install(&table::places(config)).map_err(os("bound the files that the service opens"))?;
    if config.syscall_filter {
        filter::install(config).map_err(|error| ServiceError::Filter { error })?;
    }
    Ok(())
}

/// Empties the bounding set. A thread without `CAP_SETPCAP` cannot, and loses nothing: the set limits what `execve` grants, and NoNewPrivs
/// ends that anyway.
fn empty_bounding_set() {
    let all = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    // The kernel returns EINVAL for the first number that is not a capability.
    let known = all.take_while(|one| thread::capability_is_in_bounding_set(*one).is_ok());
    for one in known {
        if let Err(error) = thread::remove_capability_from_bounding_set(one) {
            tracing::debug!("the bounding set stays as it is: {error}");
            return;
        }
    }
}

/// Supplementary groups first, the user last: each step needs a capability that setting the user removes.
fn become_user(user: &User) -> Result<(), Errno> {
    thread::set_thread_groups(&[])?;
    thread::set_thread_res_gid(user.gid, user.gid, user.gid)?;
    // Otherwise setting the user would empty the permitted set, too.
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
