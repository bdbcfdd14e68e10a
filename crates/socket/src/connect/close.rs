//! How a socket ends in this process.

use crate::socket::{Role, Sock, flag};
use crate::wait::{self, sigio};
use session::{self, connect, detached, lock};
use std::mem;
use std::time::Duration;

impl Sock {
    /// The last descriptor is closed, and no call waits.
    pub(crate) fn close(&self) {
        self.mark(flag::CLOSED, true);
        let (watchers, linger) = {
            let mut moving = lock(&self.moving);
            let linger = moving.settings.as_ref().and_then(|settings| settings.options.linger());
            (mem::take(&mut moving.watchers), linger)
        };
        watchers.sets().for_each(|(set, fd)| set.forget(fd, self));
        sigio::forget(self);
        if let (Some(role), false) = (self.decided(), self.is_parents()) {
            self.let_go(role, linger);
        }
        watchers.threads().for_each(|context| context.wake());
    }

    /// Gives up this process's hold on the connection or the accept queue.
    fn let_go(&self, role: Role<'_>, linger: Option<u32>) {
        let client = session::present();
        if client.is_none() && detached::is_locked() {
            // The service knows what this process holds, and lets it go when the process ends.
            return;
        }
        match role {
            Role::Stream(link) => {
                let waits = |seconds: &u32| *seconds > 0 && !link.mapped.pair && !link.has_moved();
                if let Some(seconds) = linger.filter(waits) {
                    wait::sent(link, Duration::from_secs(u64::from(seconds)));
                }
                connect::let_go(client.as_deref(), link, linger == Some(0));
            }
            Role::Listener(listener) => listener.close(client.as_deref()),
        }
    }
}
