"""Sends TCP segments with a wrong checksum into an interface, without end: what gets them only receives and drops. They come from a thousand
ports, so that they belong to many groups of flows. Usage: flood.py INTERFACE ADDRESS"""
import socket
import struct
import sys

line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
line.bind((sys.argv[1], 0))


def frame(port):
    payload = bytes(1400)
    tcp = struct.pack("!HHIIBBHHH", port, 9, 1, 1, 5 << 4, 0x10, 1000, 0xBAD, 0) + payload
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0,
                     socket.inet_aton("10.82.0.1"), socket.inet_aton(sys.argv[2]))
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~total & 0xFFFF) + ip[12:]
    return b"\xff" * 6 + b"\x02\0\0\0\0\x99" + b"\x08\0" + ip + tcp


frames = [frame(port) for port in range(20000, 21000)]
print("ready", flush=True)
while True:
    for one in frames:
        try:
            line.send(one)
        except OSError:
            pass
