"""Ends TCP connections by a RST to the other host in the name of this one, as a broken box on the way does.
Usage: rst.py INTERFACE PORT COUNT. The first COUNT connections to or from PORT that it sees are ended; prints `sees` and the ports of each."""
import socket
import struct
import sys

RST, ACK, OUTGOING = 0x04, 0x10, 4
interface, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
wire.bind((interface, 0))
targets = set()


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def reset(frame, here, there, seq):
    """The answer to `frame`: from port `here` to port `there`."""
    ends = frame[30:34] + frame[26:30]
    tcp = struct.pack("!HHIIBBHHH", here, there, seq, 0, 5 << 4, RST, 0, 0, 0)
    found = checksum(ends + struct.pack("!BBH", 0, 6, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", found) + tcp[18:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + ends
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return frame[6:12] + frame[0:6] + b"\x08\x00" + head + tcp


while True:
    frame, address = wire.recvfrom(65536)
    if address[2] == OUTGOING or frame[23] != 6:
        continue
    at = 14 + 4 * (frame[14] & 15)
    there, here, _, ack = struct.unpack("!HHII", frame[at : at + 12])
    flags = frame[at + 13]
    if port not in (there, here) or not flags & ACK or flags & RST:
        continue
    if (there, here) not in targets and len(targets) < count:
        targets.add((there, here))
        print("sees", there, here, flush=True)
    if (there, here) in targets:
        # What the other host acknowledges is what it expects next: RFC 5961 section 3.2 wants exactly that number. If it has received
        # more meanwhile, it answers with the right one.
        wire.send(reset(frame, here, there, ack))
