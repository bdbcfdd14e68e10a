//! `towpath explain`: for each socket, whether it is accelerated, why not, what it waits for, and what to do next.

use crate::Where;
use crate::advice::{self, bytes};
use crate::ask::report;
use crate::process::{Absence, Cause, KernelSocket, Line, Process};
use crate::table::{cell, print, print_json, rows_of, width, wrapped};
use crate::target::Target;
use anyhow::{Context, bail};
use clap::Args;
use control::known::nearest;
use control::{KernelReason, Report};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

pub const HELP: &str = "Examples:\n  \
towpath explain                            every socket of every program that uses this service\n  \
towpath explain 4711                       one process, also one that does not use it: why not\n  \
towpath explain redis-server               the processes of that name, also those that do not use it\n  \
towpath explain :6379                      sockets with that port at either end\n  \
towpath explain 10.0.0.1:80                sockets with that address at either end\n  \
towpath explain 10.0.0.2:40000-10.0.0.1:80 one socket, by its own end and its peer's\n  \
towpath explain --json | jq '.processes[].sockets[] | select(.accelerated | not) | .reason'\n\n\
One line a socket; below it what it waits for now, what to do about it, and the numbers that say so. Other users' processes\n\
are shown to root and to the service's user; `towpath ss` shows the addresses and states of their sockets.";

#[derive(Debug, Args)]
pub struct Explain {
    #[command(flatten)]
    place: Where,
    /// A process by number or name, or a socket: 10.0.0.1:80, :80, or OWN-PEER [default: everything]
    #[arg(value_name = "PID|NAME|SOCKET")]
    target: Option<Target>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The state of a socket that had its connection from a service that does not exist any more.
const LOST: &str = "LOST";

impl Explain {
    pub fn execute(self) -> anyhow::Result<()> {
        let control = self.place.path();
        let processes = match &self.target {
            Some(Target::Process(pid)) => of_processes(&[*pid], &control)?,
            Some(Target::Name(name)) => of_processes(&named(name)?, &control)?,
            Some(target) => with_sockets(target, &control)?,
            None => match report(&control, Report::Explain) {
                Ok(known) => all(&known, &control),
                Err(e) => Some(left_behind(&json!({}), &control)).filter(|left| !left.is_empty()).ok_or(e)?,
            },
        };
        if self.json {
            let processes: Vec<Value> = processes.iter().map(Explained::json).collect();
            return print_json(json!({ "control": control, "processes": processes }));
        }
        if processes.is_empty() {
            return print("no program uses this service; start one with `towpath run -- COMMAND`");
        }
        let shown: Vec<String> = processes.iter().map(Explained::text).collect();
        print(wrapped(&shown.join("\n\n"), width()).trim_end())
    }
}

/// These processes with all their sockets. Of several, one that has ended meanwhile is left out.
fn of_processes(pids: &[i32], control: &Path) -> anyhow::Result<Vec<Explained>> {
    let known = report(control, Report::Explain);
    let mut found = pids.iter().map(|pid| match &known {
        Ok(known) => one(known, *pid, control),
        Err(e) => without_service(*pid, control, e),
    });
    if pids.len() == 1 { found.collect() } else { Ok(found.by_ref().flatten().collect()) }
}

/// The numbers of the processes with this name.
fn named(name: &str) -> anyhow::Result<Vec<i32>> {
    let processes = Process::all();
    let pids = processes.iter().copied().filter(|pid| Process::new(*pid).is_some_and(|p| p.is_called(name)));
    let pids: Vec<i32> = pids.filter(|pid| pid.unsigned_abs() != std::process::id()).collect();
    if !pids.is_empty() {
        return Ok(pids);
    }
    let names: Vec<String> = processes.into_iter().filter_map(Process::new).map(|p| p.name()).collect();
    let near = nearest(name, names.iter().map(String::as_str));
    let advice = near.map_or_else(
        || "`towpath explain` shows the processes that use the service".to_owned(),
        |near| format!("did you mean {near}?"),
    );
    bail!("no process is called {}; {advice}", service::report::text::shown(name))
}

/// The processes that use the service, each with those of its sockets that `target` selects; at least one socket.
fn with_sockets(target: &Target, control: &Path) -> anyhow::Result<Vec<Explained>> {
    let known = match report(control, Report::Explain) {
        Ok(known) => known,
        Err(e) => match lost(&left_behind(&json!({}), control), control) {
            Some(lost) => bail!("{e}\n{lost}"),
            None => return Err(e),
        },
    };
    let mut processes = all(&known, control);
    for process in &mut processes {
        process.sockets.retain(|row| target.is(row));
    }
    processes.retain(|process| !process.sockets.is_empty());
    if processes.is_empty() {
        let lost =
            lost(&left_behind(&known, control), control).map_or(String::new(), |lost| format!("\n{lost}"));
        bail!(
            "no program of this service has such a socket; `towpath explain PID` says why a program has none{lost}"
        );
    }
    Ok(processes)
}

/// A process with its sockets.
#[derive(Debug)]
struct Explained {
    /// `None`: it is not in the PID namespace from which is asked.
    pid: Option<i32>,
    name: String,
    is_attached: bool,
    /// The reason why no socket of the process is accelerated, or why its sockets cannot be read.
    absence: Option<Absence>,
    settings: Value,
    sockets: Vec<Value>,
}

/// All attached processes with all their sockets.
fn all(known: &Value, control: &Path) -> Vec<Explained> {
    let mut pids = BTreeSet::new();
    let process = |application: &Value| match application["pid"].as_i64() {
        // A process that has ended since the report is left out. One may have two lines.
        Some(pid) => one(known, i32::try_from(pid).ok().filter(|pid| pids.insert(*pid))?, control).ok(),
        None => Some(unseen(known, application)),
    };
    rows_of(known, "applications").filter_map(process).collect()
}

/// A process that has no number here.
fn unseen(known: &Value, application: &Value) -> Explained {
    Explained {
        pid: None,
        name: cell(&application["process"]),
        is_attached: true,
        absence: Some(Absence {
            cause: Cause::Other,
            reason: "its process is in another PID namespace: what it has on the kernel is not shown here"
                .to_owned(),
            advice: "ask there, or in a PID namespace above both, as root".to_owned(),
        }),
        settings: json!({}),
        sockets: with(known, "application", &application["application"]),
    }
}

/// The accelerated sockets of a process, by what says which one it is.
fn with(known: &Value, key: &str, value: &Value) -> Vec<Value> {
    let of_it = rows_of(known, "sockets").filter(|row| row[key] == *value).cloned();
    let mut sockets: Vec<Value> = of_it.map(accelerated).collect();
    for row in sockets.iter_mut().filter(|row| !row["core"].is_null()) {
        row["steering"] = known["cores"]["steering"].clone();
    }
    sockets
}

/// A process with all its sockets.
fn one(known: &Value, pid: i32, control: &Path) -> anyhow::Result<Explained> {
    let process = Process::new(pid).with_context(|| format!("there is no process {pid}"))?;
    let application = rows_of(known, "applications").find(|row| row["pid"] == pid);
    let mut sockets = with(known, "pid", &json!(pid));
    let mut absence = application.is_none().then(|| absence(known, &process, control));
    // If the service is gone, sockets that the kernel lists nowhere count too: they are placeholders of lost connections.
    let is_gone = absence.as_ref().is_some_and(|absence| absence.cause == Cause::Gone);
    let wanted = |fd, inode| reason_of(known, inode).is_some() || is_gone && process.is_tcp(fd);
    match process.kernel_sockets(wanted) {
        Ok(found) => {
            let rows = found.iter().filter_map(|socket| {
                let reason = reason_of(known, socket.inode);
                kernel(&process, absence.as_ref(), &sockets, socket, reason)
            });
            let rows: Vec<Value> = rows.collect();
            sockets.extend(rows);
        }
        Err(e) => {
            absence.get_or_insert(Absence {
                cause: Cause::Other,
                reason: format!("its kernel sockets cannot be looked at: {e}"),
                advice: "ask as its user, or as root".to_owned(),
            });
        }
    }
    Ok(Explained {
        pid: Some(pid),
        name: process.name(),
        is_attached: application.is_some(),
        absence,
        settings: json!(process.settings()),
        sockets,
    })
}

/// The reason why the service does not know a process, as far as can be seen.
fn absence(known: &Value, process: &Process, control: &Path) -> Absence {
    let absence = process.absence(control);
    let is_one_unseen = rows_of(known, "applications").any(|row| row["pid"].is_null());
    if absence.cause != Cause::Gone || !is_one_unseen {
        return absence;
    }
    Absence {
        cause: Cause::Other,
        reason: "the service is in another PID namespace, and this kernel does not say whether the process is one of its programs"
            .to_owned(),
        advice: "see `towpath explain` without a number, or ask in the service's namespace (Linux 6.9 can say it)".to_owned(),
    }
}

/// A process with its sockets, if no service answers.
fn without_service(pid: i32, control: &Path, e: &anyhow::Error) -> anyhow::Result<Explained> {
    let mut explained = one(&json!({}), pid, control)?;
    if explained.absence.as_ref().is_some_and(|absence| absence.cause == Cause::Other) {
        let advice = "start the service, then the program again with `towpath run`".to_owned();
        let absence = Absence { cause: Cause::Other, reason: e.to_string(), advice };
        for row in &mut explained.sockets {
            (row["reason"], row["advice"]) = (json!(absence.reason), json!(absence.advice));
        }
        explained.absence = Some(absence);
    }
    Ok(explained)
}

/// The processes that used a service at `control` which is gone. `known`: the report of the service that answers there now.
fn left_behind(known: &Value, control: &Path) -> Vec<Explained> {
    let had = |pid: &i32| Process::new(*pid).is_some_and(|p| p.uses(control) && p.has_registered());
    let left = Process::all().into_iter().filter(had).filter_map(|pid| one(known, pid, control).ok());
    left.filter(|process| process.absence.as_ref().is_some_and(|a| a.cause == Cause::Gone)).collect()
}

/// A text that names these processes, which lost their connections with their service; `None` if there is none.
fn lost(left: &[Explained], control: &Path) -> Option<String> {
    let names: Vec<String> = left.iter().map(Explained::title).collect();
    let names = names.join(", ");
    let log = crate::up::log_of_dead(control);
    let log = log.map_or_else(String::new, |log| format!("; its log: {}", log.display()));
    (!left.is_empty())
        .then(|| format!("the service which had the connections of {names} is gone, and they are reset{log}"))
}

/// Reason and advice for a socket of a process after its service has gone: the socket is the kernel's or lost.
fn without_its_service(socket: &KernelSocket) -> (String, String) {
    let (reason, advice) = match socket.line.as_ref().map(|line| line.state) {
        None => (
            "the service which had the connection is gone, and it is reset (or there never was one)",
            "let the program connect again",
        ),
        Some("LISTEN") => (
            "the service which had the listener is gone: only the kernel's clients reach it",
            "start a service, and let the program listen again",
        ),
        Some(_) => (
            "it is the kernel's, for a reason that was told to the service which is gone",
            "start a service, and let the program connect again",
        ),
    };
    (reason.to_owned(), advice.to_owned())
}

/// The reason why a kernel socket is not accelerated, as its program has told the service.
fn reason_of(known: &Value, inode: u64) -> Option<KernelReason> {
    let inode = inode.to_string();
    let told = known["applications"].as_array()?.iter().find_map(|a| a["kernel"].get(inode.as_str()))?;
    serde_json::from_value(told.clone()).ok()
}

/// Adds what limits an accelerated socket to the service's row about it.
fn accelerated(mut row: Value) -> Value {
    let (what, advice) = advice::of_limit(&row);
    row["accelerated"] = json!(true);
    row["waits_for"] = json!(what);
    row["advice"] = json!(advice);
    row
}

/// The row of a kernel socket; `None` if it is the kernel's twin of an accelerated listener.
fn kernel(
    process: &Process,
    absence: Option<&Absence>,
    accelerated: &[Value],
    socket: &KernelSocket,
    reason: Option<KernelReason>,
) -> Option<Value> {
    let is_listener = |row: &&Value| row["state"] == "LISTEN";
    let port_of =
        |row: &Value| row["local"].as_str().and_then(|a| a.parse::<SocketAddr>().ok()).map(|a| a.port());
    let line = socket.line.as_ref();
    let listens = line.is_some_and(|line| {
        accelerated.iter().filter(is_listener).any(|row| port_of(row) == Some(line.local.port()))
    });
    if listens && reason.is_none() && line.is_some_and(|line| line.state == "LISTEN") {
        return None;
    }
    let (reason, advice) = match (reason, absence) {
        (Some(reason), _) => (reason.to_string(), reason.advice().to_owned()),
        (None, Some(absence)) if absence.cause == Cause::Gone => without_its_service(socket),
        (None, Some(absence)) => (absence.reason.clone(), absence.advice.clone()),
        (None, None) => without_reason(process, listens),
    };
    let is_lost = line.is_none() && absence.is_some_and(|absence| absence.cause == Cause::Gone);
    let is_listener = line.is_some_and(|line| line.state == "LISTEN");
    let remote = |line: &Line| if is_listener { "*".to_owned() } else { line.remote.to_string() };
    // What the kernel lists nowhere is unknown.
    Some(json!({
        "accelerated": false,
        "fd": socket.fd,
        "inode": socket.inode,
        "state": line.map(|line| line.state).or(is_lost.then_some(LOST)),
        "local": line.map(|line| line.local.to_string()),
        "remote": line.map(remote),
        "recv_queue": line.map(|line| line.recv_queue),
        "send_queue": line.map(|line| line.send_queue),
        "reason": reason,
        "advice": advice,
    }))
}

/// Reason and advice for a kernel socket of an attached process that has told no reason.
fn without_reason(process: &Process, at_listener: bool) -> (String, String) {
    if let Some(why) = process.unseen() {
        return (format!("the program {}", why.what()), why.advice().to_owned());
    }
    if at_listener {
        let reason = "its peer is a kernel socket: the client is not accelerated";
        let advice = "start the client with `towpath run`, too, for the same service";
        return (reason.to_owned(), advice.to_owned());
    }
    (
        "the library was not asked: the socket is older than the library's use of this service, was inherited, or was \
         connected past libc (io_uring, a system call of the program's own)"
            .to_owned(),
        "see whether a socket that the program opens now is accelerated".to_owned(),
    )
}

impl Explained {
    fn json(&self) -> Value {
        json!({
            "pid": self.pid,
            "process": self.name,
            "attached": self.is_attached,
            "reason": self.absence.as_ref().map(|a| &a.reason),
            "advice": self.absence.as_ref().map(|a| &a.advice),
            "settings": self.settings,
            "sockets": self.sockets,
        })
    }

    fn title(&self) -> String {
        format!("{} ({})", self.name, cell(&json!(self.pid)))
    }

    fn text(&self) -> String {
        let count = |is: fn(&Value) -> bool| self.sockets.iter().filter(|row| is(row)).count();
        let (accelerated, lost) =
            (count(|row| row["accelerated"] == true), count(|row| row["state"] == LOST));
        let kernel = self.sockets.len() - accelerated - lost;
        let also = if lost > 0 { format!(", {lost} lost") } else { String::new() };
        let mut lines =
            vec![format!("{}: {accelerated} accelerated, {kernel} on the kernel{also}", self.title())];
        let settings = self.settings.as_object().into_iter().flatten();
        let settings: Vec<String> =
            settings.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or(""))).collect();
        if !settings.is_empty() {
            lines.push(format!("  started with {}", settings.join(" ")));
        }
        if let Some(absence) = &self.absence {
            lines.push(format!("  {}", absence.reason));
            lines.push(format!("    -> {}", absence.advice));
        }
        for row in &self.sockets {
            self.socket_text(row, &mut lines);
        }
        lines.join("\n")
    }

    fn socket_text(&self, row: &Value, lines: &mut Vec<String>) {
        let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        let ends = match row["remote"].as_str() {
            None | Some("*") => text("local"),
            Some(remote) => format!("{} -> {remote}", text("local")),
        };
        if row["accelerated"] == false {
            let line = match row["state"] == LOST {
                true => format!("  {LOST} (fd {})", row["fd"]),
                false => format!("  {} {ends}: kernel (fd {})", text("state"), row["fd"]),
            };
            // A reason that applies to the whole process is printed only once.
            if self.absence.as_ref().is_some_and(|absence| row["reason"] == absence.reason) {
                return lines.push(line);
            }
            lines.push(format!("{line}: {}", text("reason")));
            return lines.push(format!("    -> {}", text("advice")));
        }
        let way = match row["kind"].as_str().unwrap_or("") {
            "pair" => "shared memory",
            "relay" => "relayed by the service",
            "flow" => "TCP over the port",
            "channel" => "over channels to the peer's service",
            _ => "and open to the kernel's clients",
        };
        lines.push(format!("  {} {ends}: accelerated, {way}", text("state")));
        if let Some(channel) = row["channel"].as_str() {
            lines.push(format!("    {channel}"));
        }
        if let Some(steering) = row["steering"].as_str() {
            let place = format!("core {}, group {} of 256", row["core"], row["group"]);
            lines.push(format!("    {place}; packets come to cores by {steering}"));
        }
        if let Some(class) = row["class"].as_str() {
            lines.push(format!("    class {class}"));
        }
        lines.push(format!("    limited by {}", text("waits_for")));
        if row["advice"] != "" {
            lines.push(format!("    -> {}", text("advice")));
        }
        if let Some(congestion) = row["congestion"].as_object() {
            lines.push(format!("    {}", advice::governed(congestion)));
        }
        let moved = [("bytes_in", "in"), ("bytes_out", "out")]
            .map(|(key, word)| format!("{} {word}", bytes(row[key].as_u64().unwrap_or(0))));
        let moved = if row["state"] == "LISTEN" { String::new() } else { format!("; {}", moved.join(", ")) };
        let idle = row["idle_ms"].as_f64().map(|ms| format!("; idle for {:.1} s", ms / 1000.0));
        lines.push(format!("    {}{moved}{}", advice::numbers(row), idle.unwrap_or_default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_found_with_whoever_told_it() {
        let known = json!({ "applications": [
            { "pid": 1, "kernel": {} }, { "pid": 2, "kernel": { "77": "IoUring" } },
        ] });
        assert_eq!(
            reason_of(&known, 77),
            Some(KernelReason::IoUring),
            "a child may hold what its parent opened"
        );
        assert_eq!(reason_of(&known, 78), None);
        assert_eq!(reason_of(&json!({}), 77), None);
    }
}
