"""A hostile peer of a channel service, on the kernel's TCP: noise, halves of handshakes, silence. Prints the number of connections, then `done`.
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
# From these the service has no whole frame, and waits for more.
halves = [HELLO, HELLO + body()[:50], b""]
kept = []
for bytes_ in said * 4:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    kept.append(connection)
    connection.settimeout(30)
    try:
        connection.sendall(bytes_)
        if bytes_ not in halves:
            # The service has refused it when this comes back. A RST of ours before that could take the connection from it unseen.
            connection.recv(64)
    except OSError:
        pass
# Half of them are closed now, the others when the program ends.
for connection in kept[::2]:
    connection.close()
print(len(kept), flush=True)
print("done", flush=True)
