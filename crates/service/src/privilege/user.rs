//! The user that a root service becomes (`--user USER[:GROUP]`).

use super::sys;
use rustix::io::Errno;
use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

/// A user and a group: of this machine, or given by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Becomes the real, effective, saved and file-system user.
    pub uid: Uid,
    /// Becomes the real, effective, saved and file-system group; there are no supplementary groups.
    pub gid: Gid,
}

impl User {
    /// Does `work` with that user's rights to files. New files belong to that user, and a link that the user has put in the way leads only
    /// to files that the user could change already.
    ///
    /// # Errors
    /// The kernel refuses to change the user or group, or to change it back.
    pub fn act<T>(&self, work: impl FnOnce() -> T) -> Result<T, Errno> {
        let (uid, gid) = (geteuid(), getegid());
        set_thread_res_gid(None, self.gid, None)?;
        set_thread_res_uid(None, self.uid, None)?;
        let done = work();
        set_thread_res_uid(None, uid, None)?;
        set_thread_res_gid(None, gid, None)?;
        Ok(done)
    }

    /// Parses `USER` or `USER:GROUP`, by name or number. Without a group it is the user's own; a number without a known user needs a group.
    /// `None`: there is no such user or group, or the user is root.
    pub fn find(text: &str) -> Option<Self> {
        let (name, group) = text.split_once(':').map_or((text, None), |(name, group)| (name, Some(group)));
        let named = sys::user(name);
        let uid = named.map(|(uid, _)| uid).or_else(|| name.parse().ok())?;
        let gid = match group {
            Some(group) => sys::group(group).or_else(|| group.parse().ok()),
            None => named.map(|(_, gid)| gid),
        }?;
        // All ones means "do not change" to setresuid.
        let is_good = uid != 0 && uid != u32::MAX && gid != u32::MAX;
        is_good.then(|| Self { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) })
    }
}
