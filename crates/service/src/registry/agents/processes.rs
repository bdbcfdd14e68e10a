//! The processes of agents, by descriptors that become readable when a process ends. Says nothing to agents.

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;

/// One process of an agent.
#[derive(Debug)]
struct Process {
    /// Its number; 0: it is in no PID namespace of the service's.
    pid: u32,
    /// `None`: the process cannot be watched. That it is gone shows when a datagram finds no socket.
    watch: Option<(u64, OwnedFd)>,
}

/// True for a process that has ended, though its parent has not asked for its status yet.
fn is_over(process: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ready, Some(&Timespec::default())) == Ok(1)
}

/// Processes by the address of their agents.
#[derive(Debug, Default)]
pub struct Processes {
    by_address: BTreeMap<Vec<u8>, Process>,
    tokens: u64,
}

impl Processes {
    /// From now on watches `process` for the agent at `address`, in `set`. False if the process has ended already.
    pub fn watch(&mut self, set: &OwnedFd, address: &[u8], process: Option<u32>) -> bool {
        let known = self.by_address.get(address).map(|process| process.pid);
        if known == process {
            return true;
        }
        // Closing the descriptor ends its watch.
        self.by_address.remove(address);
        let Some(pid) = process else { return true };
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let opened = raw.map_or(Err(Errno::INVAL), |pid| pidfd_open(pid, PidfdFlags::empty()));
        if opened.as_ref().map_or_else(|e| *e == Errno::SRCH, is_over) {
            return false;
        }
        self.tokens += 1;
        let token = self.tokens;
        let watch = opened.and_then(|fd| {
            epoll::add(set, &fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
            Ok((token, fd))
        });
        if let Err(e) = &watch {
            let which = if pid == 0 { "in another PID namespace".to_owned() } else { format!("{pid}") };
            tracing::warn!(
                "the end of an agent's process ({which}) is noticed late: it cannot be watched: {e}"
            );
        }
        self.by_address.insert(address.to_vec(), Process { pid, watch: watch.ok() });
        true
    }

    /// The addresses of agents with processes that have ended, and these processes, by what is ready in `set`.
    pub fn ended(&mut self, set: &OwnedFd) -> Vec<(Vec<u8>, u32)> {
        let mut events = Vec::with_capacity(64);
        if epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&Timespec::default())).is_err()
        {
            return Vec::new();
        }
        let is_ready = |token: u64| events.iter().any(|event| event.data.u64() == token);
        let has_ended = |process: &Process| process.watch.as_ref().is_some_and(|(token, _)| is_ready(*token));
        let ended = self.by_address.iter().filter(|(_, process)| has_ended(process));
        let ended: Vec<_> = ended.map(|(address, process)| (address.clone(), process.pid)).collect();
        ended.iter().for_each(|(address, _)| drop(self.by_address.remove(address)));
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    #[test]
    fn the_end_of_a_process_is_heard_once() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut processes = Processes::default();
        assert!(processes.watch(&set, b"/a", Some(child.id())) && processes.watch(&set, b"/b", None));
        assert!(processes.ended(&set).is_empty());
        drop(child.stdin.take());
        let waits = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_raw(child.id() as i32).unwrap()), waits).unwrap();
        assert_eq!(processes.ended(&set), [(b"/a".to_vec(), child.id())]);
        assert!(!processes.watch(&set, b"/a", Some(child.id())), "its parent does not know yet");
        child.wait().unwrap();
        assert!(processes.ended(&set).is_empty());
        assert!(!processes.watch(&set, b"/a", Some(child.id())), "it is known to be gone");
        assert!(processes.watch(&set, b"/a", Some(0)), "a process of another namespace is not watched");
    }
}
