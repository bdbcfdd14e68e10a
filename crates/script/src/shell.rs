//! Shell commands of scripts. None is executed: a command that sets TCP parameters of the machine changes the host's configuration; an
//! unknown command makes the script unsupported.

use crate::syntax::Trouble;
use std::collections::BTreeMap;

/// The state that commands have set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shell {
    /// Values below `net.ipv4.` and `net.core.`, by full name.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Files that contain only zeros, by path, with their lengths in bytes.
    pub(crate) files: BTreeMap<String, usize>,
    /// True: the network card does not segment, so the stack builds no super-frames.
    pub(crate) is_segmentation_off: bool,
}

/// The TCP sysctls that the `defaults.sh` of public scripts sets.
const DEFAULTS: [(&str, &str); 9] = [
    ("net.ipv4.tcp_rmem", "4096 540000 15728640"),
    ("net.ipv4.tcp_wmem", "4096 262144 4194304"),
    ("net.ipv4.tcp_timestamps", "1"),
    ("net.ipv4.tcp_syn_retries", "5"),
    ("net.ipv4.tcp_synack_retries", "5"),
    ("net.ipv4.tcp_sack", "1"),
    ("net.ipv4.tcp_congestion_control", "cubic"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_ecn", "0"),
];

impl Shell {
    /// Applies the commands in `text`.
    pub(crate) fn run(&mut self, text: &str, line: u32) -> Result<(), Trouble> {
        let text = text.replace("\\\n", " ");
        for (row_line, row) in (line..).zip(text.split('\n')) {
            for command in row.split([';']).flat_map(|part| part.split("&&")) {
                if is_delay_detection(command) {
                    continue;
                }
                let words = words(command);
                if let Some((name, arguments)) = words.split_first() {
                    self.command(name, arguments, row_line)?;
                }
            }
        }
        Ok(())
    }

    fn command(&mut self, name: &str, arguments: &[String], line: u32) -> Result<(), Trouble> {
        let file = name.rsplit('/').next().unwrap_or(name);
        let first: Vec<&str> = arguments.iter().take(2).map(String::as_str).collect();
        match (file, first.as_slice()) {
            ("defaults.sh", _) => {
                self.sysctls.extend(DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned())));
                Ok(())
            }
            ("set_sysctls.py" | "sysctl", _) => {
                let is_flag = |a: &&String| matches!(a.as_str(), "-q" | "-w" | "-qw" | "-e");
                arguments.iter().filter(|a| !is_flag(a)).try_for_each(|a| self.sysctl(a, line))
            }
            ("dd", _) => self.dd(arguments, line),
            ("rm", _) => {
                self.files.retain(|path, _| !arguments.contains(path));
                Ok(())
            }
            ("ethtool", ["-K", _]) => self.offloads(arguments, line),
            // The host keeps no metrics of routes, and no kernel counters are read.
            ("ip", ["tcp_metrics", "flush"]) | ("nstat" | "true" | ":", _) => Ok(()),
            ("tc", ["qdisc", _]) => queue(arguments, line),
            _ if file.starts_with("sysctl_restore_") => Ok(()),
            _ => {
                let shown = [&[name.to_owned()], arguments].concat().join(" ");
                Err(Trouble::unsupported(line, format!("the command `{shown}`")))
            }
        }
    }

    fn sysctl(&mut self, assignment: &str, line: u32) -> Result<(), Trouble> {
        let Some((name, value)) = assignment.split_once('=') else {
            return Err(Trouble::unsupported(line, format!("reading the sysctl {assignment}")));
        };
        let name = name.strip_prefix("/proc/sys/").unwrap_or(name).replace('/', ".");
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        if !crate::sysctl::is_understood(&name, &value) {
            return Err(Trouble::unsupported(line, format!("the sysctl {name}={value}")));
        }
        self.sysctls.insert(name, value);
        Ok(())
    }

    /// Handles `ethtool -K tun0 tso off gso off`.
    fn offloads(&mut self, arguments: &[String], line: u32) -> Result<(), Trouble> {
        for pair in arguments.get(2..).unwrap_or_default().chunks(2) {
            match (pair[0].as_str(), pair.get(1).map(String::as_str)) {
                ("tso" | "gso", Some(value @ ("on" | "off"))) => self.is_segmentation_off = value == "off",
                // Packets to the host arrive as the script writes them, not merged.
                ("gro" | "lro" | "tx" | "rx" | "sg", Some("on" | "off")) => {}
                _ => {
                    return Err(Trouble::unsupported(
                        line,
                        format!("the command `ethtool {}`", arguments.join(" ")),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Handles `dd bs=1 count=5 if=/dev/zero of=/tmp/file`.
    fn dd(&mut self, arguments: &[String], line: u32) -> Result<(), Trouble> {
        let value = |key: &str| arguments.iter().find_map(|a| a.strip_prefix(key)?.strip_prefix('='));
        let number = |key: &str| value(key).and_then(size);
        match (value("if"), value("of"), number("bs"), number("count")) {
            (Some("/dev/zero"), Some(path), Some(size), Some(count))
                if size.saturating_mul(count) <= 64 << 20 =>
            {
                self.files.insert(path.to_owned(), size * count);
                Ok(())
            }
            _ => Err(Trouble::unsupported(line, "this use of dd")),
        }
    }
}

/// True for a command that makes Cubic leave slow start when round trips grow longer, which our Cubic always does (HyStart++, RFC 9406).
fn is_delay_detection(command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    matches!(words[..], ["echo", "2" | "3", ">", "/sys/module/tcp_cubic/parameters/hystart_detect"])
}

/// Accepts disciplines that only queue: they change nothing, because a script's link has no rate.
fn queue(arguments: &[String], line: u32) -> Result<(), Trouble> {
    let has = |word: &str| arguments.iter().any(|a| a == word);
    let is_plain = !has("limit") && ["pfifo", "pfifo_fast", "fq", "fq_codel", "noqueue"].into_iter().any(has);
    if is_plain {
        return Ok(());
    }
    Err(Trouble::unsupported(line, format!("the command `tc {}`", arguments.join(" "))))
}

/// Parses a size with dd's suffix `k` or `M`.
fn size(text: &str) -> Option<usize> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// The words of one command, without quotes, redirections and comments.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut is_word = false;
    for c in command.chars().chain([' ']) {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                is_word = true;
            }
            (None, '#') if !is_word => break,
            (None, c) if c.is_whitespace() => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            (_, c) => {
                word.push(c);
                is_word = true;
            }
        }
    }
    let mut kept = Vec::new();
    let mut rest = words.into_iter();
    while let Some(word) = rest.next() {
        match word.trim_start_matches(|c: char| c.is_ascii_digit()) {
            ">" | ">>" => drop(rest.next()),
            redirection if redirection.starts_with('>') => {}
            _ => kept.push(word),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::Shell;

    fn after(text: &str) -> Shell {
        let mut shell = Shell::default();
        shell.run(text, 1).unwrap();
        shell
    }

    #[test]
    fn sysctls_are_read_from_every_way_to_write_them() {
        let shell = after(
            "../common/defaults.sh\n ../common/set_sysctls.py /proc/sys/net/ipv4/tcp_timestamps=0 \\\n \
             /proc/sys/net/ipv4/tcp_sack=0\n# a comment\nsysctl -q net.ipv4.tcp_rmem=\"4096 87380  65536\" > /dev/null 2>&1",
        );
        let value = |name: &str| shell.sysctls.get(name).map(String::as_str);
        assert_eq!(value("net.ipv4.tcp_timestamps"), Some("0"));
        assert_eq!(value("net.ipv4.tcp_sack"), Some("0"));
        assert_eq!(value("net.ipv4.tcp_rmem"), Some("4096 87380 65536"));
        assert_eq!(value("net.ipv4.tcp_congestion_control"), Some("cubic"));
    }

    #[test]
    fn command_that_is_not_understood_is_told_with_its_line() {
        let error = Shell::default().run("true\nip route change 192.0.2.1 mtu lock 1400", 7).unwrap_err();
        assert_eq!(error.line, 8);
        for text in [
            "reboot",
            "sysctl net.ipv4.tcp_mtu_probing=2",
            "tc qdisc add dev tun0 root pfifo limit 0",
            "sysctl -a",
        ] {
            assert!(Shell::default().run(text, 1).is_err(), "{text}");
        }
    }

    #[test]
    fn files_are_zeros_of_a_length() {
        let shell = after("/bin/rm -f /tmp/f\n/bin/dd bs=1k count=5 if=/dev/zero of=/tmp/f status=none");
        assert_eq!(shell.files.get("/tmp/f"), Some(&5120));
    }
}
