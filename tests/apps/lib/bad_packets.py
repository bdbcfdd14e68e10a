"""Packets that no honest peer sends, thrown at a service's port: each is dropped and counted by its reason, and the service goes on."""

import random
import socket
import struct

from lib.crowds import load, start_echo
from lib.process import require, until
from lib.registry import test
from lib.world import WAYS

OURS, THEIRS, MAC = "10.77.0.2", "10.77.0.1", "02:00:00:00:00:77"


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def tcp(source, port, flags=2, bad_sum=False, options=b"", offset=None):
    words = 5 + len(options) // 4 if offset is None else offset
    header = struct.pack("!HHIIBBHHH", 40_000, port, 1, 0, words << 4, flags, 1024, 0, 0) + options
    pseudo = socket.inet_aton(source) + socket.inet_aton(OURS) + struct.pack("!HH", 6, len(header))
    value = checksum(pseudo + header) ^ (0x5555 if bad_sum else 0)
    return header[:16] + struct.pack("!H", value) + header[18:]


def ip(payload, source=THEIRS, fragment=0, length=None, bad_sum=False, version=0x45):
    length = 20 + len(payload) if length is None else length
    header = struct.pack("!BBHHHBBH4s4s", version, 0, length, 7, fragment, 64, 6, 0, socket.inet_aton(source), socket.inet_aton(OURS))
    value = checksum(header) ^ (0x5555 if bad_sum else 0)
    return header[:10] + struct.pack("!H", value) + header[12:] + payload


@test("tap_server.bad_packets", way=WAYS["tap_server"], limit_s=40, kernel=False, up=("--mac", MAC))
def bad_packets(w):
    """Truncated, corrupted, martian, oversized and fragmented packets, then random ones, while an honest client works."""
    _, port = start_echo(w)
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind(("tp0", 0))
    head = bytes.fromhex(MAC.replace(":", "")) + wire.getsockname()[4] + b"\x08\x00"
    bad = {
        "cut in the TCP header": head + ip(tcp(THEIRS, port)[:10]),
        "longer by its header than it is": head + ip(tcp(THEIRS, port), length=1200),
        "wrong IP checksum": head + ip(tcp(THEIRS, port), bad_sum=True),
        "wrong TCP checksum": head + ip(tcp(THEIRS, port, bad_sum=True)),
        "from a multicast address": head + ip(tcp("224.0.0.9", port), source="224.0.0.9"),
        "from loopback": head + ip(tcp("127.0.0.1", port), source="127.0.0.1"),
        "a fragment": head + ip(tcp(THEIRS, port), fragment=0x2001),
        "option of length zero": head + ip(tcp(THEIRS, port, options=b"\x02\x00\x05\xb4")),
        "data offset beyond the end": head + ip(tcp(THEIRS, port, offset=15)),
        "IP version 9": head + ip(tcp(THEIRS, port), version=0x95),
        "an unknown Ethernet type": head[:12] + b"\x12\x34" + bytes(64),
    }

    def dropped():
        return sum(w.stat()["traffic"]["dropped"].values())

    for what, frame in bad.items():
        before = dropped()
        wire.send(frame)
        until(lambda: dropped() > before, 2, f"{what}: dropped and counted")
    reasons = w.stat()["traffic"]["dropped"]
    require(len(reasons) >= 6, f"told apart by reason: {reasons}")
    rng = random.Random(1)
    for _ in range(20_000):
        frame = bytearray(rng.choice(list(bad.values())))
        for _ in range(rng.randrange(4)):
            frame[rng.randrange(14, len(frame))] = rng.randrange(256)
        wire.send(bytes(frame[: rng.randrange(15, len(frame) + 1)]))
    load(w, port, 20, 50, seconds=20)
    return ", ".join(sorted(reasons))
