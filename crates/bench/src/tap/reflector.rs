//! A process behind a TAP interface that turns each segment into its answer: it swaps addresses, ports and sequence numbers, keeps no state
//! and checks nothing. For the kernel's clients it is an echo server, and the cheapest possible one: two system calls per request.

use super::forwarder::{End, Ready, TURN, descriptor, receive, until_hang_up};
use anyhow::Context;
use control::Line;
use port::VNET_HEADER_LEN;
use port_tap::TapOptions;
use rustix::fd::BorrowedFd;
use wire::{TcpFlags, checksum};

/// The role of this process.
pub const ROLE: &str = "reflector";

const IP_AT: usize = 14;
const TCP_AT: usize = IP_AT + 20;
const PAYLOAD_AT: usize = TCP_AT + 20;
const FIN: u8 = TcpFlags::FIN.bits() as u8;
const SYN: u8 = TcpFlags::SYN.bits() as u8;
const RST: u8 = TcpFlags::RST.bits() as u8;
const PSH: u8 = TcpFlags::PSH.bits() as u8;
const ACK: u8 = TcpFlags::ACK.bits() as u8;
/// The server's first sequence number.
const FIRST: u32 = 1_000;

/// The main function of this process. It returns when the control socket is closed.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let end = line.receive::<End>(true)?.message;
    let options = TapOptions {
        name: super::link::INTERFACE.to_owned(),
        host_v4: Some((end.address, 24)),
        namespace: Some(end.namespace),
        ..TapOptions::default()
    };
    let tap = port_tap::open(&options).context("cannot make a TAP interface")?;
    let queue = descriptor(&tap)?;
    line.send(&Ready(1), &[], true)?;
    let mut buffer = vec![0; base::limits::FRAME_MAX + VNET_HEADER_LEN];
    until_hang_up(line, &[queue], || turn(queue, tap.mac, &mut buffer))
}

/// Answers at most [`TURN`] frames. Returns the number of frames read.
fn turn(queue: BorrowedFd<'_>, mac: [u8; 6], buffer: &mut [u8]) -> rustix::io::Result<usize> {
    let mut seen = 0;
    while seen < TURN {
        let Some(len) = receive(queue, buffer)? else { break };
        seen += 1;
        let answer = buffer.get_mut(VNET_HEADER_LEN..len).and_then(|frame| reflect(frame, mac));
        if let Some(answer) = answer {
            let _ = rustix::io::write(queue, &buffer[..VNET_HEADER_LEN + answer]);
        }
    }
    Ok(seen)
}

/// Turns a frame into its answer. Returns the answer's length; `None` if there is none.
fn reflect(frame: &mut [u8], mac: [u8; 6]) -> Option<usize> {
    match frame.get(12..14)? {
        [8, 6] => resolve(frame, mac),
        [8, 0] if *frame.get(IP_AT)? == 0x45 && *frame.get(IP_AT + 9)? == 6 => echo(frame),
        _ => None,
    }
}

/// Turns an ARP request (RFC 826) into its answer: every address has this MAC address.
pub fn resolve(frame: &mut [u8], mac: [u8; 6]) -> Option<usize> {
    let arp = frame.get_mut(IP_AT..IP_AT + 28)?;
    if arp[6..8] != [0, 1] {
        return None;
    }
    arp[7] = 2;
    let (asks, is_asked) = (<[u8; 10]>::try_from(&arp[8..18]).ok()?, <[u8; 4]>::try_from(&arp[24..28]).ok()?);
    arp[18..28].copy_from_slice(&asks);
    arp[8..14].copy_from_slice(&mac);
    arp[14..18].copy_from_slice(&is_asked);
    frame[..6].copy_from_slice(&asks[..6]);
    frame[6..12].copy_from_slice(&mac);
    Some(frame.len())
}

fn echo(frame: &mut [u8]) -> Option<usize> {
    let flags = *frame.get(TCP_AT + 13)?;
    let number = |frame: &[u8], at: usize| Some(u32::from_be_bytes(*frame.get(at..at + 4)?.first_chunk()?));
    let (seq, ack) = (number(frame, TCP_AT + 4)?, number(frame, TCP_AT + 8)?);
    let is_syn = flags & SYN != 0;
    let payload = if is_syn { 0 } else { (frame.len().checked_sub(PAYLOAD_AT)?) as u32 };
    if flags & RST != 0 || payload == 0 && flags & (SYN | FIN) == 0 {
        return None;
    }
    let (first, further) = frame.split_at_mut(6);
    first.swap_with_slice(&mut further[..6]);
    exchange::<4>(frame, IP_AT + 12);
    exchange::<2>(frame, TCP_AT);
    let taken = payload + u32::from(flags & (SYN | FIN) != 0);
    let begins = if is_syn { FIRST } else { ack };
    frame[TCP_AT + 4..TCP_AT + 8].copy_from_slice(&begins.to_be_bytes());
    frame[TCP_AT + 8..TCP_AT + 12].copy_from_slice(&seq.wrapping_add(taken).to_be_bytes());
    frame[TCP_AT + 13] = flags & (SYN | FIN) | ACK | if payload > 0 { PSH } else { 0 };
    if is_syn {
        without_options(frame)?;
        return Some(PAYLOAD_AT);
    }
    Some(frame.len())
}

/// Removes the options of a SYN, so that the connection has none. The checksum field contains the sum of the pseudo-header, which the
/// kernel leaves for checksum offload; adapt it to the shorter segment.
fn without_options(frame: &mut [u8]) -> Option<()> {
    let was = u16::from_be_bytes(*frame.get(IP_AT + 2..IP_AT + 4)?.first_chunk()?);
    let sum = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let ip = checksum::update_u16(sum(frame, IP_AT + 10), was, 40);
    // Not complemented, because the field is a sum that offload completes.
    let tcp = !checksum::update_u16(!sum(frame, TCP_AT + 16), was - 20, 20);
    frame[IP_AT + 2..IP_AT + 4].copy_from_slice(&40_u16.to_be_bytes());
    frame[IP_AT + 10..IP_AT + 12].copy_from_slice(&ip.to_be_bytes());
    frame[TCP_AT + 12] = 5 << 4;
    frame[TCP_AT + 16..TCP_AT + 18].copy_from_slice(&tcp.to_be_bytes());
    Some(())
}

/// Exchanges the `N` bytes at `at` with the next `N`.
fn exchange<const N: usize>(frame: &mut [u8], at: usize) {
    let (first, second) = frame[at..at + 2 * N].split_at_mut(N);
    first.swap_with_slice(second);
}
