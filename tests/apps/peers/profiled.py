"""profiled WHAT HOST PORT: programs on which a profile's settings show."""

import resource
import socket
import struct
import sys
import time

ROUNDS, ANSWER_S = 300, 150e-6
SEGS_IN_AT = 140


def served(host, port):
    return socket.create_server((host, int(port)))


def answer(host, port):
    """Each answer takes 150 us of work."""
    sock = served(host, port).accept()[0]
    while sock.recv(1):
        end = time.perf_counter() + ANSWER_S
        while time.perf_counter() < end:
            pass
        sock.send(b".")


def ask(host, port):
    sock = socket.create_connection((host, int(port)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(ROUNDS):
        sock.send(b".")
        sock.recv(1)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before, flush=True)


def hold(host, port):
    sock = served(host, port).accept()[0]
    time.sleep(60)
    sock.close()


def write(host, port):
    sock = socket.create_connection((host, int(port)))
    sock.send(bytes(100))
    print("written", flush=True)
    time.sleep(60)


def trickle(host, port):
    """50 bytes, each answered, and how many segments have come back by then."""
    listener = served(host, port)
    print("listens", flush=True)
    sock = listener.accept()[0]
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def segments():
        return struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 248), SEGS_IN_AT)[0]

    before = segments()
    for _ in range(50):
        sock.send(b".")
        sock.recv(1)
    print(segments() - before, flush=True)


def take(host, port):
    sock = socket.create_connection((host, int(port)))
    while sock.recv(1):
        time.sleep(0.005)
        sock.send(b".")


if __name__ == "__main__":
    {f.__name__: f for f in (answer, ask, hold, write, trickle, take)}[sys.argv[1]](*sys.argv[2:])
