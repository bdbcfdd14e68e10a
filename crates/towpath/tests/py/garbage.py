"""A hostile peer of a channel service, on the kernel's TCP: noise, halves of handshakes, silence. Prints `done`.
Usage: garbage.py ADDRESS PORT"""
import os
import socket
import struct
import sys

HELLO = struct.pack("<I", 96)[:3] + b"\x01" + bytes(12)


def body(least=1, most=1, class_=1):
    return b"TpCh" + bytes([least, most, class_, 0]) + bytes(8) + struct.pack("<II", 61440, 1000) + bytes(72)


said = [
    os.urandom(4096),
    b"GET / HTTP/1.1\r\n\r\n" * 100,
    HELLO,
    HELLO + body()[:50],
    HELLO + body(0, 0),
    HELLO + body(255, 255),
    HELLO + body(class_=9),
    HELLO + body() + HELLO + body(),
    b"\xff" * 16,
    bytes(65536),
    b"",
]
kept = []
for bytes_ in said * 4:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    kept.append(connection)
    try:
        connection.sendall(bytes_)
    except OSError:
        pass
# Half of them are closed now, the others when the program ends.
for connection in kept[::2]:
    connection.close()
print("done", flush=True)
