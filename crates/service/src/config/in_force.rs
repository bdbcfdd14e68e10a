//! The configuration in force as keys: those that a source sets, and the defaults of the others. `towpath up --check` prints it.

use crate::ServiceError;
use crate::config::values::{ChannelCount, CoresChoice, PortChoice, PortKind};
use crate::config::{AgentSettings, Config, Link, Options};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

impl Config {
    /// Every key that has one value in force, where `set` are the keys that this configuration was made of. A file with these keys makes the
    /// same configuration. Keys without a value are left out, as are those that mean nothing here: without a port, for instance, its keys.
    #[must_use]
    pub fn in_force(&self, set: Options) -> Options {
        let names_port = set.port.as_ref().is_some_and(|port| port.name.is_some());
        let mut all = set.or(self.general());
        if self.port != PortKind::None {
            all = all.or(of_link(&self.link));
            let is_tap = self.port == PortKind::Tap && !names_port;
            all.port_name = all.port_name.or_else(|| is_tap.then(|| self.link.name.clone()));
        }
        if let Some(agents) = &self.agents {
            all = all.or(of_agents(agents));
        }
        if let Some(channels) = &self.channels {
            let count = channels.channels.map_or(ChannelCount::Auto, ChannelCount::Fixed);
            let port = std::num::NonZeroU16::new(channels.port);
            all = all.or(Options { channel_port: port, channel_count: Some(count), ..Options::default() });
        }
        all
    }

    /// Checks that the port's network namespace and its interface are there. Opens neither.
    ///
    /// # Errors
    /// One of them is not there, or the namespace cannot be entered.
    pub fn check_place(&self) -> Result<(), ServiceError> {
        let is_needed = self.port == PortKind::Packet;
        let is_there = || !is_needed || has_interface(&self.link.name);
        let found = match self.link.namespace.as_deref().filter(|_| self.port != PortKind::None) {
            None => is_there(),
            Some(name) => port::in_namespace(name, is_there).map_err(|e| {
                ServiceError::Port(format!(
                    "--netns {name}: it cannot be entered: {e}; `ip netns` lists them"
                ))
            })?,
        };
        match found {
            true => Ok(()),
            false => Err(ServiceError::Port(format!(
                "--port packet:{}: there is no such interface: `ip link` lists them; in another network namespace, name that, too (--netns)",
                self.link.name
            ))),
        }
    }

    /// The keys that mean something to every service. `ring_max` has two values where it is not set.
    fn general(&self) -> Options {
        let cores = match self.cores.is_auto {
            true => CoresChoice::Auto(Some(self.cores.most)),
            false => CoresChoice::Fixed(self.cores.most),
        };
        Options {
            control: Some(self.control.clone()),
            private: Some(self.private),
            port: Some(PortChoice { kind: self.port, name: None }),
            sharing: Some(self.sharing),
            max_applications: Some(self.max_applications),
            max_sockets: Some(self.max_sockets),
            max_memory_mib: Some(self.max_memory >> 20),
            region_slots: Some(self.region_slots),
            region_mib: Some(self.region_data >> 20),
            spin_us: Some(self.spin_ns / 1000),
            cores: Some(cores),
            syscall_filter: Some(self.syscall_filter),
            log: Some(self.log.clone()),
            ..Options::default()
        }
    }
}

/// True if this network namespace has an interface of that name.
fn has_interface(name: &str) -> bool {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None);
    any.is_ok_and(|any| name_to_index(&any, name).is_ok())
}

fn of_link(link: &Link) -> Options {
    let [sack, timestamps, window_scaling, ecn, accurate_ecn] = link.switches.map(Some);
    Options {
        no_checksum_offload: Some(!link.checksum),
        no_gso: Some(!link.gso),
        congestion: Some(link.congestion),
        sack,
        timestamps,
        window_scaling,
        ecn,
        accurate_ecn,
        buffer_initial: Some(link.buffer_initial),
        hop_limit: Some(link.hop_limit),
        max_flows: Some(link.flows),
        ..Options::default()
    }
}

fn of_agents(agents: &AgentSettings) -> Options {
    Options {
        cc_agents: Some(agents.places.clone()),
        cc_reports: Some(agents.reports),
        cc_every_ack: Some(agents.every_ack),
        cc_window_max: Some(agents.window_max),
        ..Options::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys in force, as lines of TOML, for a file with this text.
    fn in_force(text: &str) -> String {
        let set: Options = toml::from_str(text).unwrap();
        toml::to_string(&set.clone().resolve().unwrap().in_force(set)).unwrap()
    }

    #[test]
    fn an_interface_and_a_namespace_that_are_not_there_are_told() {
        let check = |text: &str| {
            let text = format!("{text}\naddress = [\"10.9.0.2/24\"]");
            let set: Options = toml::from_str(&text).unwrap();
            set.resolve().unwrap().check_place().map_err(|error| error.to_string())
        };
        assert_eq!(check("port = \"packet:lo\""), Ok(()));
        assert_eq!(check("port = \"tap:nobody0\""), Ok(()), "the service makes it");
        let told = check("port = \"packet:nobody0\"").unwrap_err();
        assert!(told.contains("--port packet:nobody0") && told.contains("ip link"), "{told}");
        let told = check("port = \"tap\"\nnetns = \"no-such-namespace\"").unwrap_err();
        assert!(told.contains("--netns no-such-namespace"), "{told}");
    }

    #[test]
    fn a_file_with_the_keys_in_force_makes_the_same_configuration() {
        let port = "port = \"tap\"\naddress = [\"10.9.0.2/24\"]";
        let agents = "cc_socket = \"/run/towpath/cc\"\nchannel_peers = [\"10.9.0.0/24\"]";
        for text in [
            String::new(),
            "cores = 3\nlog = \"service=debug\"".to_owned(),
            port.to_owned(),
            format!("{port}\n{agents}\ncongestion = \"dctcp\"\nno_checksum_offload = true"),
            "port = \"tap:tp0\"\naddress = [\"10.9.0.2/24\"]".to_owned(),
        ] {
            let first = in_force(&text);
            assert_eq!(in_force(&first), first, "of {text}");
            assert!(text.lines().all(|line| first.contains(line)), "{text} is not in {first}");
        }
        assert!(in_force(port).contains("hop_limit = 64\n") && !in_force("").contains("hop_limit"));
        assert!(in_force(&format!("{port}\ncongestion = \"dctcp\"")).contains("\necn = true\n"));
        assert!(in_force("").contains("sharing = \"same-user\"\n"));
    }
}
