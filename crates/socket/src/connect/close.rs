//! How a socket ends in this process.

use crate::socket::{Role, Sock, flag};
use crate::wait::{self, sigio};
use control::Request;
use session::{self, detached, lock};
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
        let ours = client.as_ref().map_or(u64::MAX, |c| c.holder_bit());
        match role {
            Role::Stream(link) => {
                let waits = |seconds: &u32| *seconds > 0 && !link.mapped.pair && !link.has_moved();
                if let Some(seconds) = linger.filter(waits) {
                    wait::sent(link, Duration::from_secs(u64::from(seconds)));
                }
                // The slot may be lent again as soon as it is released, so the lease is asked first.
                let is_lent = link.mapped.lease.has(link.slot());
                let last = link.release(ours, linger == Some(0));
                if last && is_lent {
                    link.mapped.lease.closed(link.slot());
                }
                if let (true, Some(client)) = (link.is_left(), &client) {
                    client.say(Request::LetGo);
                }
                if let (true, Some(client)) = (last && link.must_say_closed(), client) {
                    client.say(Request::Closed { region: link.mapped.id, slot: link.slot() });
                }
            }
            Role::Listener(listener) => listener.close(client.as_deref()),
        }
    }
}
