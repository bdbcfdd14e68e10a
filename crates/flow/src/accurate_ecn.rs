//! Accurate ECN of a flow (RFC 9768), without its TCP option: the counts of marked packets in both directions, and the three header bits (ACE)
//! that carry them. Decides nothing about windows, and knows no packet.
//!
//! ```text
//!   receiver: packet with CE --receive--> received (r.cep) --tell--> ACE = received mod 8 in each segment
//!   sender:   ACE --hear--> heard (s.cep), owed: bytes that congestion control must still hear of --pay--> marked bytes
//! ```

use wire::Ecn;

/// "When a host first enters AccECN mode ... it initializes its counters to r.cep = 5" and "s.cep = 5" (RFC 9768 section 3.2.1).
const FIRST: u32 = 5;
/// An ACE field counts modulo this.
const CYCLE: u32 = 8;
/// Marks, not told yet, for which an acknowledgement is sent at once: with unacknowledged data, and without (RFC 9768 section 3.2.2.5.1).
const TELL_AT: [u32; 2] = [2, 3];
/// Packets over which the share of marked ones is smoothed.
const SHARE_PACKETS: u32 = 16;

/// The state of accurate ECN in one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccurateEcn {
    is_agreed: bool,
    may_mark: bool,
    is_heard: bool,
    was_marked: bool,
    /// ACE value of the next pure acknowledgement (at a server: of the SYN-ACK) that says how the peer's SYN-ACK (its SYN) arrived; 0: none.
    greeting: u8,
    /// Low bits of `received` in the last segment sent.
    told: u8,
    /// Share of marked packets among those acknowledged lately, in 255ths.
    share: u8,
    /// Packets received with CE, and [`FIRST`]: r.cep.
    received: u32,
    /// The same at the peer, as far as is known: s.cep.
    heard: u32,
    /// Bytes known to be marked that congestion control was not told of.
    owed: u32,
}

/// The handshake encoding of an ECN field (RFC 9768 tables 2 and 3).
const fn greeting_of(seen: Ecn) -> u8 {
    match seen {
        Ecn::NotEct => 0b010,
        Ecn::Ect1 => 0b011,
        Ecn::Ect0 => 0b100,
        Ecn::Ce => 0b110,
    }
}

impl AccurateEcn {
    /// State of a flow without accurate ECN: its ends have not agreed on it.
    pub const NONE: Self = Self {
        is_agreed: false,
        may_mark: false,
        is_heard: false,
        was_marked: false,
        greeting: 0,
        told: 0,
        share: 0,
        received: 0,
        heard: 0,
        owed: 0,
    };

    /// The end that has got a SYN with this ECN field, which asks for accurate ECN.
    #[must_use]
    pub const fn server(seen: Ecn) -> Self {
        Self {
            is_agreed: true,
            may_mark: true,
            is_heard: true,
            greeting: greeting_of(seen),
            told: FIRST as u8,
            received: FIRST,
            heard: FIRST,
            ..Self::NONE
        }
    }

    /// State of the end that connects: its SYN, without ECT, asked for accurate ECN, and a SYN-ACK with this ECN field and this ACE field agrees.
    /// Any field but those for "not ECT" and "reserved" says that the path changes ECN fields: then no data of ours is marked as capable.
    #[must_use]
    pub fn client(seen: Ecn, ace: u8) -> Self {
        let mut new = Self { may_mark: matches!(ace, 0b010 | 0b101), ..Self::server(seen) };
        // "it MUST increment r.cep, but no more than once no matter how many CE-marked SYN/ACKs it receives" (section 3.2.2.2).
        new.received += u32::from(seen == Ecn::Ce);
        new.was_marked = seen == Ecn::Ce;
        new
    }

    /// True when both ends have agreed on accurate ECN.
    #[must_use]
    #[inline]
    pub const fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    /// True when data of ours may carry ECT.
    #[must_use]
    #[inline]
    pub const fn may_mark(&self) -> bool {
        self.may_mark
    }

    /// "MUST NOT set ECT on any packet for the rest of the connection": a SYN or SYN-ACK without ECN was received or sent (section 3.1.5).
    pub const fn forbid_marks(&mut self) {
        self.may_mark = false;
    }

    /// The peer's SYN, or SYN-ACK, has come again, with this ECN field: "MUST feed back the IP-ECN field on the latest valid SYN or
    /// acceptable SYN/ACK to arrive" (section 3.1.5). `is_client`: it is a SYN-ACK.
    pub fn greet_again(&mut self, seen: Ecn, is_client: bool) {
        self.greeting = greeting_of(seen);
        if is_client && seen == Ecn::Ce && self.received == FIRST {
            self.received += 1;
        }
    }

    /// The value that answers the peer's SYN in our SYN-ACK.
    #[must_use]
    pub const fn greeting(&self) -> u8 {
        self.greeting
    }

    /// The end that has sent a SYN-ACK without ECT gets a pure acknowledgement without SACK blocks in SYN-RECEIVED: "it MUST infer the
    /// meaning of each possible value of the ACE field from Table 4" (section 3.2.2.1). True: our SYN-ACK was marked.
    pub const fn greeted(&mut self, ace: u8) -> bool {
        match ace {
            // "the Server MUST NOT set ECT on outgoing packets and MUST NOT respond to AccECN feedback."
            0b000 => (self.may_mark, self.is_heard) = (false, false),
            // Our SYN-ACK was not ECT, so something on the path has changed its field.
            0b011 | 0b100 => self.may_mark = false,
            0b110 => (self.may_mark, self.heard) = (false, FIRST + 1),
            _ => {}
        }
        ace == 0b110
    }

    /// The server's handshake is over: its greeting went with the SYN-ACK.
    #[must_use]
    pub const fn established(mut self, is_client: bool) -> Self {
        if !is_client {
            self.greeting = 0;
        }
        self
    }

    /// The ACE field of a segment that is sent now; `is_pure`: an acknowledgement without data and SACK blocks.
    pub const fn tell(&mut self, is_pure: bool) -> u8 {
        if is_pure && self.greeting != 0 {
            let greeting = self.greeting;
            self.greeting = 0;
            return greeting;
        }
        self.told = self.received as u8;
        self.next_field()
    }

    /// The ACE field that the next segment would have.
    #[must_use]
    pub const fn next_field(&self) -> u8 {
        (self.received % CYCLE) as u8
    }

    /// `packets` acceptable packets have come as one, all marked or none; `has_data`: they carry data; `is_waiting`: data before them is not
    /// acknowledged. True: they are to be acknowledged at once.
    pub fn receive(&mut self, is_marked: bool, packets: u32, has_data: bool, is_waiting: bool) -> bool {
        let is_change = is_marked && !self.was_marked && has_data;
        self.was_marked = is_marked;
        if !is_marked {
            return false;
        }
        self.received = self.received.wrapping_add(packets);
        let untold = u32::from((self.received as u8).wrapping_sub(self.told));
        let most = if has_data || is_waiting { TELL_AT[0] } else { TELL_AT[1] };
        is_change || untold >= most || packets >= most
    }

    /// An acknowledgement that no later one has overtaken has this ACE field and acknowledges `packets` packets of `mss` bytes that were not
    /// acknowledged before.
    ///
    /// The field may have gone round more than once: then "it SHOULD deem whether it cycled by taking the safest likely case under the
    /// prevailing conditions" (section 3.2.2.5.2). A receiver tells of each second mark, so whole cycles without news are those of lost
    /// acknowledgements and merged packets; as many are assumed as fit into twice the share of marked packets of late.
    pub fn hear(&mut self, ace: u8, packets: u32, mss: u16) {
        if !self.is_heard {
            return;
        }
        let least = u32::from(ace).wrapping_sub(self.heard) % CYCLE;
        let likely = (u64::from(packets) * 2 * u64::from(self.share) / 255).min(u64::from(packets)) as u32;
        let cycles = if packets < CYCLE { 0 } else { likely.saturating_sub(least) / CYCLE };
        let marked = least + cycles * CYCLE;
        self.heard = self.heard.wrapping_add(marked);
        self.owed = self.owed.saturating_add(marked.saturating_mul(u32::from(mss)));
        if let Some(now) = (marked.min(packets) * 255).checked_div(packets) {
            let weight = packets.min(SHARE_PACKETS);
            let old = u32::from(self.share) * (SHARE_PACKETS - weight);
            self.share = ((old + now * weight) / SHARE_PACKETS) as u8;
        }
    }

    /// Bytes that congestion control must still hear of.
    #[must_use]
    #[inline]
    pub const fn owed(&self) -> u32 {
        self.owed
    }

    /// Takes at most `most` of the [`owed`](Self::owed) bytes.
    pub fn pay(&mut self, most: u32) -> u32 {
        let paid = self.owed.min(most);
        self.owed -= paid;
        paid
    }

    /// Packets received with CE, modulo 2^32.
    #[must_use]
    pub const fn received(&self) -> u32 {
        self.received.wrapping_sub(FIRST)
    }

    /// Packets of ours that the peer has received with CE, as far as is known, modulo 2^32.
    #[must_use]
    pub const fn heard(&self) -> u32 {
        self.heard.wrapping_sub(FIRST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: AccurateEcn = AccurateEcn::server(Ecn::NotEct).established(false);

    /// RFC 9768 tables 2, 3 and 4.
    #[test]
    fn handshakes_say_how_syns_arrived() {
        for (seen, value) in [(Ecn::NotEct, 2), (Ecn::Ect1, 3), (Ecn::Ect0, 4), (Ecn::Ce, 6)] {
            assert_eq!(AccurateEcn::server(seen).greeting(), value);
            let mut client = AccurateEcn::client(seen, 2);
            assert_eq!((client.tell(false), client.tell(true)), (5 + u8::from(seen == Ecn::Ce), value));
            assert_eq!(client.tell(true), 5 + u8::from(seen == Ecn::Ce), "once");
            client.greet_again(Ecn::Ce, true);
            assert_eq!((client.tell(true), client.tell(true)), (6, 6), "counted once at most");
        }
        for (ace, may_mark) in [(2, true), (5, true), (3, false), (4, false), (6, false)] {
            assert_eq!(AccurateEcn::client(Ecn::NotEct, ace).may_mark(), may_mark);
        }
        for ace in 0..8 {
            let mut server = SERVER;
            assert_eq!(server.greeted(ace), ace == 6);
            assert_eq!(server.heard(), u32::from(ace == 6));
            assert_eq!(server.may_mark(), matches!(ace, 1 | 2 | 5 | 7));
            server.hear(server.heard as u8 + 1, 1, 1000);
            assert_eq!(server.owed(), if ace == 0 { 0 } else { 1000 }, "zero: feedback is not heeded");
        }
    }

    /// RFC 9768 section 3.2.2.5.1: change-triggered and increment-triggered acknowledgements.
    #[test]
    fn marks_are_told_at_once_where_the_rfc_wants_it() {
        let mut r = SERVER;
        assert!(!r.receive(false, 1, true, false));
        assert!(r.receive(true, 1, true, false), "a change");
        assert_eq!(r.tell(false), 6);
        assert!(!r.receive(true, 1, true, true), "one of two");
        assert!(r.receive(true, 1, true, true));
        assert_eq!(r.tell(true), 0, "modulo 8");
        assert!(!r.receive(true, 1, false, false) && !r.receive(true, 1, false, false), "no data: three");
        assert!(r.receive(true, 1, false, false));
        assert!(!r.receive(false, 5, false, false));
        assert!(r.receive(true, 300, true, false), "a super-frame");
        assert_eq!((r.received(), r.tell(false)), (306, ((5 + 306) % 8) as u8));
    }

    #[test]
    fn what_is_heard_is_what_was_counted_when_few_packets_are_acknowledged() {
        let (mut receiver, mut sender) = (SERVER, SERVER);
        let mut count = 0;
        for i in 0u32..10_000 {
            let packets = i % 7 + 1;
            for k in 0..packets {
                let is_marked = (i * 7 + k) % 3 == 0;
                count += u32::from(is_marked);
                receiver.receive(is_marked, 1, true, false);
            }
            sender.hear(receiver.tell(true), packets, 100);
            assert_eq!((sender.heard(), receiver.received()), (count, count));
        }
        assert_eq!((sender.pay(50), sender.pay(u32::MAX)), (50, count * 100 - 50));
    }

    /// RFC 9768 section 3.2.2.5.2.
    #[test]
    fn whole_cycles_are_assumed_where_marks_are_frequent() {
        let mut s = SERVER;
        s.hear(5, 44, 1000);
        assert_eq!(s.heard(), 0, "no mark was ever heard of");
        (0..20).for_each(|_| s.hear((s.heard as u8).wrapping_add(4) % 8, 4, 1000));
        let before = s.heard();
        s.hear(s.heard as u8 % 8, 40, 1000);
        assert_eq!(s.heard() - before, 40, "all were marked of late");
    }
}
