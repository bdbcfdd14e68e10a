//! Numbers of processes in a report, as the reader's `/proc` has them.
//!
//! The service writes the numbers of its own PID namespace, and beside each the inode number of the process's descriptor, which is the same in all
//! namespaces ([`control::credentials::process_inode`]). A reader in another namespace finds the process by that, or does not see it.

use crate::process::Process;
use control::credentials::{has_own_proc, numbers_of, peer_credentials, peer_process, process_inode};
use rustix::fd::BorrowedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The pairs of keys: a number, and the inode number beside it.
const KEYS: [(&str, &str); 2] = [("pid", "pidfd_inode"), ("peer_pid", "peer_pidfd_inode")];

/// Makes the numbers in a report those of this process's `/proc`; null where the process is not there. `line`: to the service.
pub fn translate(report: &mut Value, line: BorrowedFd<'_>) {
    let mut here = (!is_of_this_proc(line)).then_some(Here(None));
    walk(report, here.as_mut());
}

/// The processes that are visible here by the inode numbers of their descriptors; looked for when the first is asked for.
struct Here(Option<HashMap<u64, i32>>);

impl Here {
    fn number(&mut self, inode: &Value) -> Option<i32> {
        let inode = inode.as_u64()?;
        self.0.get_or_insert_with(all).get(&inode).copied()
    }
}

fn all() -> HashMap<u64, i32> {
    // Where `/proc` is another namespace's, its numbers say nothing to `pidfd_open`.
    if !has_own_proc() {
        return HashMap::new();
    }
    let inode = |pid| process_inode(pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?);
    Process::all().into_iter().filter_map(|pid| Some((inode(pid)?, pid))).collect()
}

/// True when the service is in the PID namespace of this process's `/proc`: they have the same numbers.
fn is_of_this_proc(line: BorrowedFd<'_>) -> bool {
    let by_number = || pidfd_open(Pid::from_raw(peer_credentials(line).ok()?.pid)?, PidfdFlags::empty()).ok();
    let service = peer_process(line).ok().or_else(by_number);
    service.is_some_and(|service| numbers_of(service).len() == 1)
}

fn walk(value: &mut Value, mut here: Option<&mut Here>) {
    match value {
        Value::Array(rows) => rows.iter_mut().for_each(|row| walk(row, here.as_deref_mut())),
        Value::Object(row) => {
            KEYS.iter().for_each(|(number, inode)| change(row, number, inode, here.as_deref_mut()));
            row.values_mut().for_each(|value| walk(value, here.as_deref_mut()));
        }
        _ => {}
    }
}

fn change(row: &mut Map<String, Value>, number: &str, inode: &str, here: Option<&mut Here>) {
    if let Some(inode) = row.remove(inode)
        && let Some(here) = here
    {
        row.insert(number.to_owned(), here.number(&inode).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use serde_json::json;
    use std::os::unix::net::UnixStream;

    fn report(inode: u64) -> Value {
        json!([{ "pid": 1_000_007, "pidfd_inode": inode, "in": { "peer_pid": 8, "peer_pidfd_inode": null } }, { "pid": 9 }])
    }

    #[test]
    fn numbers_of_the_own_namespace_stay() {
        let (line, _other) = UnixStream::pair().unwrap();
        let mut told = report(1);
        translate(&mut told, line.as_fd());
        assert_eq!(told, json!([{ "pid": 1_000_007, "in": { "peer_pid": 8 } }, { "pid": 9 }]));
    }

    #[test]
    fn of_another_namespace_the_processes_are_found_that_are_here() {
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok().and_then(process_inode);
        let Some(own) = own else {
            return println!("skipped: before Linux 6.9 processes have no inode numbers");
        };
        let translated = |inode| {
            let mut told = report(inode);
            walk(&mut told, Some(&mut Here(None)));
            told
        };
        let told = |pid: Value| json!([{ "pid": pid, "in": { "peer_pid": null } }, { "pid": 9 }]);
        assert_eq!(translated(own), told(json!(std::process::id())));
        assert_eq!(translated(0), told(Value::Null), "no such process");
    }
}
