//! PostgreSQL behind an accelerated address, asked by pgbench's short queries over 20 connections of the kernel.

use super::{KERNEL, Place};
use crate::launch;
use crate::program;
use crate::samples::Samples;
use crate::served::{self, Host, Served};
use crate::{Options, Report};
use anyhow::{Context, bail};
use rustix::fs::{Gid, Uid, chown};
use std::fs::{self, Permissions};
use std::net::SocketAddrV4;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const CASE: &str = "programs/pgbench/select/c20";
const CLIENTS: u32 = 20;
/// The user that runs the server, which refuses to run as root; no file belongs to it.
const NOBODY: u32 = 65534;
/// Seconds for making the database and filling its tables.
const PATIENCE: f64 = 60.0;
/// No UNIX socket: all clients come over TCP. Nothing is written to the disk while it is measured.
const SETTINGS: [&str; 4] =
    ["unix_socket_directories=", "fsync=off", "shared_buffers=64MB", "max_connections=90"];

pub fn measure(options: &Options, samples: &mut Samples, report: &mut Report) -> anyhow::Result<()> {
    let Some(programs) = programs() else {
        report
            .note("skipped: PostgreSQL's server is not installed: run `make setup` or `scripts/setup bench`");
        return Ok(());
    };
    let place = Place::new(options)?;
    place.service.admit_users()?;
    let library = launch::library(options)?;
    let through = Host::through(&place.service, place.link.addresses[0], &place.link.namespaces[1]);
    let start = |host| start(host, &programs, library.as_deref());
    let systems = [start(through)?, start(Host::over_link(KERNEL, &place.kernels))?];
    for system in &systems {
        program::run(client(system)?.args(["-i", "-q", "postgres"]), PATIENCE)?;
    }
    let cases = [(CASE.to_owned(), ())];
    served::interleave(&cases, &systems, options, report, |system, path, ()| {
        let rate = select(system, options.seconds())?;
        samples.add(path, system.name(), "transactions", "1/s", rate);
        Ok(())
    });
    systems.into_iter().for_each(Served::stop);
    place.service.stop();
    Ok(())
}

/// The folder of the newest version's programs: distributions keep most of them out of the search path.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.filter_map(|entry| Some(entry.ok()?.path())).max_by_key(number)?;
    Some(newest.join("bin")).filter(|folder| folder.join("postgres").is_file())
}

fn start<'a>(host: Host<'a>, programs: &Path, library: Option<&Path>) -> anyhow::Result<Served<'a>> {
    let served = Served::launch(host, "setpriv", |command, address, folder| {
        let data = make_database(programs, folder)?;
        if let Some(library) = library {
            // The folder in which it was built may be closed to other users.
            let copy = folder.join(launch::LIBRARY);
            fs::copy(library, &copy)?;
            command.env("TOWPATH_PRELOAD", copy);
        }
        command.args(as_nobody()).arg(programs.join("postgres")).arg("-D").arg(data);
        listen(command, address);
        Ok(())
    })?;
    let what = format!("an answer of postgres ({})", served.name());
    program::until(PATIENCE, &what, || answers(&served).ok())?;
    Ok(served)
}

fn listen(command: &mut Command, address: SocketAddrV4) {
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    SETTINGS.iter().for_each(|setting| {
        command.args(["-c", setting]);
    });
}

fn as_nobody() -> Vec<String> {
    let id = NOBODY.to_string();
    ["--reuid", &id, "--regid", &id, "--clear-groups"].map(ToOwned::to_owned).to_vec()
}

/// Makes an empty database in the folder, with the programs of the kernel's side.
fn make_database(programs: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    fs::set_permissions(folder, Permissions::from_mode(0o711))?;
    let data = folder.join("data");
    fs::create_dir(&data)?;
    fs::set_permissions(&data, Permissions::from_mode(0o700))?;
    chown(&data, Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY)))?;
    let mut command = served::on_kernel("setpriv")?;
    command.args(as_nobody()).arg(programs.join("initdb")).arg("-D").arg(&data);
    command.args(["-A", "trust", "-U", "bench", "-N", "--locale", "C", "-E", "UTF8"]);
    program::run(&mut command, PATIENCE)?;
    let rules = data.join("pg_hba.conf");
    let more = fs::read_to_string(&rules)? + "host all all all trust\n";
    fs::write(rules, more)?;
    Ok(data)
}

fn client(server: &Served<'_>) -> anyhow::Result<Command> {
    let mut command = server.client("pgbench")?;
    let address = server.address();
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "-U", "bench"]);
    Ok(command)
}

/// Fails until the server answers a query.
fn answers(server: &Served<'_>) -> anyhow::Result<()> {
    program::run(client(server)?.args(["-i", "-I", "d", "-q", "postgres"]), PATIENCE).map(|_| ())
}

/// Transactions per second of one run.
fn select(server: &Served<'_>, seconds: f64) -> anyhow::Result<f64> {
    let whole = seconds.round().max(1.0);
    let mut command = client(server)?;
    command.args(["-n", "-S", "-c", &CLIENTS.to_string(), "-T", &whole.to_string(), "postgres"]);
    let (finished, _) = server.run(&mut command, CLIENTS, whole + 20.0)?;
    parse(&finished.stdout)
}

/// The transactions per second that pgbench prints.
fn parse(text: &str) -> anyhow::Result<f64> {
    if let Some(failed) = text.lines().find(|line| line.starts_with("number of failed transactions: "))
        && !failed.contains(": 0 ")
    {
        bail!("pgbench: {failed}");
    }
    let rate = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.context("pgbench printed no rate")
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_rate_is_read_and_failed_transactions_are_no_result() {
        let text = "number of transactions actually processed: 5000\nnumber of failed transactions: 0 (0.000%)\n\
                    latency average = 0.5 ms\ntps = 38123.25 (without initial connection time)\n";
        assert_eq!(parse(text).unwrap(), 38_123.25);
        assert!(parse(&text.replace(": 0 (0.000%)", ": 3 (0.060%)")).is_err());
        assert!(parse("pgbench: error: connection failed").is_err());
    }
}
