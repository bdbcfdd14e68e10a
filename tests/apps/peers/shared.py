"""One connection, used by two processes at once, as inetd's servers and git's clients do: a child has it as its standard output and writes,
while a thread of its parent waits in `recv` on the same connection for the answer.

`serve HOST PORT BYTES ROUNDS` greets, reads so many bytes of each of so many connections, and answers with their SHA-256;
`connect HOST PORT FILE ROUNDS` has `cat FILE` write them.
"""

import hashlib
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

GREETING = b"greeting" * 64


def digest(connection, size):
    """SHA-256 of the next `size` bytes; of fewer, if the connection ends before."""
    seen, left = hashlib.sha256(), size
    while left and (data := connection.recv(min(left, 1 << 16))):
        seen.update(data)
        left -= len(data)
    return seen.hexdigest() if left == 0 else f"{size - left} bytes"


def serve(host, port, size, rounds):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, int(port)), family=family) as listener:
        for _ in range(int(rounds)):
            with listener.accept()[0] as connection:
                connection.sendall(GREETING)
                connection.sendall(digest(connection, int(size)).encode())


def read_to_end(connection):
    answer = b""
    while data := connection.recv(4096):
        answer += data
    return answer.decode()


def connect(host, port, file, rounds):
    expected = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    with ThreadPoolExecutor(1) as pool:
        for i in range(int(rounds)):
            with socket.create_connection((host, int(port))) as connection:
                # The connection is in use before its child is started.
                assert connection.recv(len(GREETING), socket.MSG_WAITALL) == GREETING
                answer = pool.submit(read_to_end, connection)
                status = subprocess.run(["cat", file], stdout=connection, check=False).returncode
                assert (status, answer.result()) == (0, expected), f"round {i}: cat ended with {status}, the answer is {answer.result()}"
    print("done")


{"serve": serve, "connect": connect}[sys.argv[1]](*sys.argv[2:])
