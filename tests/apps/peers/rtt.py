"""rtt listen|connect HOST PORT COUNT: single bytes there and back; the one that connects prints the shortest time in microseconds."""

import socket
import sys
import time

role, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if role == "listen":
    connection = socket.create_server((host, port)).accept()[0]
else:
    connection = socket.create_connection((host, port), timeout=20)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(count):
    began = time.perf_counter()
    if role == "connect":
        connection.sendall(b"x")
    assert connection.recv(1) == b"x"
    if role == "listen":
        connection.sendall(b"x")
    times.append(time.perf_counter() - began)
if role == "connect":
    print(f"{min(times) * 1e6:.0f}")
