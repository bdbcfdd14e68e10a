"""Connects, sets the options of its name, writes, and closes. Usage: leave.py ADDRESS PORT COUNT [abort].
Prints what the options say, then `left`. With `abort` SO_LINGER is 0, and the peer gets a reset."""
import socket
import struct
import sys

connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
segment = struct.unpack("I", info[16:20])[0]
print("established" if info[0] == 1 else info[0], "segments" if segment >= 536 else segment, flush=True)
connection.sendall(bytes(int(sys.argv[3])))
if sys.argv[4:] == ["abort"]:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
connection.close()
print("left", flush=True)
