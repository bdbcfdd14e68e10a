"""heirs.py serve ADDRESS PORT | ask ADDRESS PORT CONNECTIONS: a child for each connection, which answers and closes, leaves that to its
end, or is killed; and who asks, one after the other, sleepy readers included. The client prints how many answers were whole."""

import os
import signal
import socket
import sys
import time

ANSWER = b"heir" * 16_384


def serve(address, port):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server((address, port), backlog=64)
    turn = 0
    while True:
        connection, _ = listener.accept()
        turn += 1
        if os.fork() == 0:
            how = connection.recv(5)
            if how == b"piece":
                connection.setblocking(False)
                for _ in range(4):
                    connection.send(ANSWER)
            else:
                connection.sendall(ANSWER)
            if turn % 3 == 0:
                connection.close()
            elif turn % 3 == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        connection.close()


def ask(address, port, connections):
    whole = 0
    for i in range(connections):
        with socket.create_connection((address, port), timeout=5) as connection:
            connection.sendall(b"piece" if i % 4 == 0 else b"whole")
            if i % 8 == 0:
                time.sleep(0.01)
            got = bytearray()
            while piece := connection.recv(1 << 20):
                got += piece
            whole += got.startswith(ANSWER)
    print(whole)


command, address, port, *numbers = sys.argv[1:]
{"serve": serve, "ask": ask}[command](address, int(port), *map(int, numbers))
