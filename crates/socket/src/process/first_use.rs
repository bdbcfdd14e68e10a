//! Sockets whose role is open until they are used: those that came from another process, and those with a connect that was put off.

use crate::process::{fd_passing, io_uring};
use crate::socket::{LATER, Role, Sock};
use endpoint::lock::thread_number;
use session::sys;
use std::sync::atomic::Ordering;

impl Sock {
    /// Waits for the thread that decides, unless it is this one (a signal handler interrupted its `connect`).
    #[cold]
    pub(crate) fn decided_by_another(&self) -> Option<Role<'_>> {
        let me = thread_number();
        loop {
            let thread = self.deciding.load(Ordering::Acquire);
            let role = self.decided();
            if thread >= LATER {
                let deciding = self.begin_deciding_from(thread);
                if deciding.is_ours() {
                    if thread == LATER { io_uring::connect_now(self) } else { fd_passing::take_over(self) }
                }
                continue;
            }
            if role.is_some() || thread == 0 || thread == me {
                return role;
            }
            sys::give_way();
        }
    }
}
