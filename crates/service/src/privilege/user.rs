//! The user that a service of root's becomes (`--user USER[:GROUP]`).

use super::sys;
use rustix::io::Errno;
use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

/// A user and a group that exist, or numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Real, effective, saved and file-system user.
    pub uid: Uid,
    /// The same for the group; there are no supplementary groups.
    pub gid: Gid,
}

impl User {
    /// Does `work` with that user's rights to files: what it makes is the user's, and whatever that user puts in its way leads to nothing
    /// that the user could not change already.
    ///
    /// # Errors
    /// The kernel refuses to go there, or back.
    pub fn act<T>(&self, work: impl FnOnce() -> T) -> Result<T, Errno> {
        let (uid, gid) = (geteuid(), getegid());
        set_thread_res_gid(None, self.gid, None)?;
        set_thread_res_uid(None, self.uid, None)?;
        let done = work();
        set_thread_res_uid(None, uid, None)?;
        set_thread_res_gid(None, gid, None)?;
        Ok(done)
    }

    /// Reads `USER` or `USER:GROUP`, by name or number. Without a group it is the user's own; a number that no user has needs one.
    /// `None` where there is no such user or group, or it is root.
    pub fn find(text: &str) -> Option<Self> {
        let (name, group) = text.split_once(':').map_or((text, None), |(name, group)| (name, Some(group)));
        let named = sys::user(name);
        let uid = named.map(|(uid, _)| uid).or_else(|| name.parse().ok())?;
        let gid = match group {
            Some(group) => sys::group(group).or_else(|| group.parse().ok()),
            None => named.map(|(_, gid)| gid),
        }?;
        // All ones means "leave it" to setresuid.
        let is_good = uid != 0 && uid != u32::MAX && gid != u32::MAX;
        is_good.then(|| Self { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) })
    }
}
