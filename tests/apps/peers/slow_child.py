"""slow_child.py serve ADDRESS PORT COUNT | ask ADDRESS PORT COUNT: a server that forks for each connection. Each child is stopped right after the fork
for 0.8 s, longer than the service has ever waited for a child; its sibling ends meanwhile, and its parent closes the connection. The client prints
how many answers came whole."""

import os
import signal
import socket
import sys
import time

SLOW_S = 0.8
PATIENCE_S = 60


def serve(address, port, count):
    listener = socket.create_server((address, port), backlog=50)
    print("listens", flush=True)
    # One processor: the child does not run before its parent has stopped it.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for _ in range(count):
        connection, _ = listener.accept()
        sibling = os.fork()
        if sibling == 0:
            time.sleep(0.1)
            os._exit(0)
        child = os.fork()
        if child == 0:
            connection.sendall(b"answer to " + connection.recv(64))
            os._exit(0)
        os.kill(child, signal.SIGSTOP)
        connection.close()
        os.waitpid(sibling, 0)
        time.sleep(SLOW_S)
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)


def ask(address, port, count):
    whole = 0
    for number in range(count):
        with socket.create_connection((address, port), timeout=PATIENCE_S) as connection:
            question = b"question %d" % number
            connection.sendall(question)
            answer = b""
            try:
                while piece := connection.recv(64):
                    answer += piece
            except OSError as problem:
                print(f"{number}: {problem}", file=sys.stderr)
            whole += answer == b"answer to " + question
    print(whole)


{"serve": serve, "ask": ask}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
