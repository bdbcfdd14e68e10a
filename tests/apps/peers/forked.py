"""forked.py serve blocked|set ADDRESS PORT | ask ADDRESS PORT COUNT WORKER...: three children accept from a listener that was made before
they were forked, each blocked in `accept`, or with an exclusive epoll set of its own. They answer with their process ids and close. The
client connects COUNT times, each time when all workers sleep, and prints how many answers came from which worker, as JSON."""

import collections
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

# System calls of x86-64 in which a worker without work sleeps: accept, accept4, and poll and epoll with their variants.
SLEEPS = (43, 288, 7, 271, 232, 281, 441)
PATIENCE_S = 60


def work(how, listener):
    watched = select.epoll()
    if how == "set":
        listener.setblocking(False)
        watched.register(listener.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE)
    while True:
        if how == "set":
            watched.poll()
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        connection.sendall(b"%d" % os.getpid())
        connection.close()


def serve(how, address, port):
    listener = socket.create_server((address, port), backlog=511)
    workers = []
    for _ in range(3):
        workers.append(os.fork())
        if workers[-1] == 0:
            work(how, listener)
    print("workers", *workers, flush=True)
    signal.pause()


def is_asleep(worker):
    number = Path(f"/proc/{worker}/syscall").read_text().split()[0]
    return number.isdigit() and int(number) in SLEEPS


def until_asleep(workers):
    deadline = time.monotonic() + PATIENCE_S
    while not all(is_asleep(worker) for worker in workers):
        if time.monotonic() > deadline:
            sys.exit(f"not all of {workers} sleep")
        time.sleep(0.0005)


def ask(address, port, count, *workers):
    answers = collections.Counter()
    for _ in range(count):
        until_asleep(workers)
        with socket.create_connection((address, port), timeout=PATIENCE_S) as connection:
            said = b""
            while piece := connection.recv(64):
                said += piece
        answers[int(said)] += 1
    print(json.dumps(answers))


if sys.argv[1] == "serve":
    serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    ask(sys.argv[2], *map(int, sys.argv[3:]))
