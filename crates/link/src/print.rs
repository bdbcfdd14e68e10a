//! Writes the text form of a link.

use crate::config::{Burst, LinkConfig, Loss, PacketRange};
use crate::probability::Probability;
use crate::quantity::{RATE, TIME, print, print_amount, print_probability};
use crate::{Amount, Outage};
use base::Duration;
use std::fmt::{self, Display, Formatter};

fn time(duration: Duration) -> String {
    print(duration.as_ns(), TIME)
}

fn outage(outage: &Outage) -> String {
    format!("{}-{}", print(outage.from.as_ns(), TIME), print(outage.to.as_ns(), TIME))
}

fn range(&PacketRange { first, last }: &PacketRange) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn burst(burst: &Burst) -> String {
    let parts = [burst.enter, burst.leave, burst.loss_bad, burst.loss_good].map(print_probability);
    format!("burst:{}", parts.join("/"))
}

impl LinkConfig {
    fn loss_text(&self) -> Option<String> {
        match &self.loss {
            Loss::None => None,
            Loss::Random(probability) => Some(print_probability(*probability)),
            Loss::Burst(parameters) => Some(burst(parameters)),
            Loss::List(ranges) => {
                Some(format!("list:{}", ranges.iter().map(range).collect::<Vec<_>>().join("+")))
            }
        }
    }

    fn queue_text(&self) -> Option<String> {
        let packets = self.queue_packets.map(Amount::Packets);
        let bytes = self.queue_bytes.map(Amount::Bytes);
        let both: Vec<String> = packets.into_iter().chain(bytes).map(print_amount).collect();
        match (both.is_empty(), self.has_queue()) {
            (true, false) => None,
            (true, true) => Some("none".to_owned()),
            (false, _) => Some(both.join("/")),
        }
    }

    /// Every key that is set, with its value.
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let often = |p: Probability| (!p.is_never()).then(|| print_probability(p));
        let long = |d: Duration| (d != Duration::ZERO).then(|| time(d));
        let reorder = often(self.reorder.probability).map(|p| format!("{p}/{}", time(self.reorder.extra)));
        let outages: Vec<String> = self.outages.iter().map(outage).collect();
        let all = [
            ("rate", self.rate_bits_per_second.map(|rate| print(rate, RATE))),
            ("trace", self.trace.as_ref().map(|trace| trace.name().to_owned())),
            ("delay", long(self.delay)),
            ("jitter", long(self.jitter)),
            ("queue", self.queue_text()),
            ("ecn", self.ecn_threshold.map(print_amount)),
            ("loss", self.loss_text()),
            ("reorder", reorder),
            ("duplicate", often(self.duplicate)),
            ("corrupt", often(self.corrupt)),
            ("truncate", often(self.truncate)),
            ("mtu", self.mtu.map(|mtu| mtu.to_string())),
            ("down", (!outages.is_empty()).then(|| outages.join("+"))),
            ("flap", self.flap.map(|flap| format!("{}/{}", time(flap.up), time(flap.down)))),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }
}

impl Display for LinkConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pairs = self.pairs();
        if pairs.is_empty() {
            return f.write_str("perfect");
        }
        let text: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&text.join(","))
    }
}
