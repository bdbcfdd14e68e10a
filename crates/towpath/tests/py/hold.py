"""Connects, gets one byte back, prints `held`, waits for the end of the connection, and prints what came: `end`, or the errno.
Usage: hold.py ADDRESS PORT [UID]. With UID it becomes that user first."""
import encodings.idna  # another user may not read where it lies
import os
import socket
import sys

if sys.argv[3:]:
    os.setuid(int(sys.argv[3]))
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b"x")
assert connection.recv(1) == b"x"
print("held", flush=True)
try:
    print("end" if connection.recv(1) == b"" else "bytes", flush=True)
except OSError as error:
    print(error.errno, flush=True)
