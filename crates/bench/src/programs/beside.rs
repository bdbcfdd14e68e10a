//! redis with one connection while many other programs of the same service do nothing, beside redis of a service that has no others.

use super::{OURS, Place};
use crate::peer::{self, Peer};
use crate::redis::{self, Case};
use crate::samples::Samples;
use crate::served::{self, Host, Served};
use crate::sockets::actor::Answer;
use crate::sockets::ask::{self, Ask};
use crate::{Options, Report};

pub const CASE: &str = "programs/redis/get/c1/p1/idle300";
/// The system's name in results: a service without idle programs.
pub const ALONE: &str = "towpath-alone";
/// Idle programs, each with a listening socket.
const IDLE: usize = 300;
const PATIENCE: f64 = 20.0;

pub fn measure(options: &Options, samples: &mut Samples, report: &mut Report) -> anyhow::Result<()> {
    let places = [Place::new(options)?, Place::new(options)?];
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        let process = Peer::start_by(places[0].service.command_of(&peer::own_program()?), ask::ROLE)?;
        process.send(&Ask::Listen(places[0].link.addresses[0]), &[])?;
        process.receive_within::<Answer>(PATIENCE)?;
        idle.push(process);
    }
    let names = [OURS, ALONE];
    let host = |i: usize| {
        let place = &places[i];
        Host {
            name: names[i],
            ..Host::through(&place.service, place.link.addresses[0], &place.link.namespaces[1])
        }
    };
    let systems = [redis::start(host(0))?, redis::start(host(1))?];
    served::interleave(&[(CASE.to_owned(), Case::ONE)], &systems, options, report, |system, path, case| {
        redis::measure(system, *case, options.seconds())?.add_to(samples, path, system.name());
        Ok(())
    });
    systems.into_iter().for_each(Served::stop);
    drop(idle);
    places.into_iter().for_each(|place| place.service.stop());
    report.note(format!("{CASE}: {IDLE} programs with a listening socket each"));
    Ok(())
}
