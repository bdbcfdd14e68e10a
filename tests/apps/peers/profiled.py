"""profiled WHAT HOST PORT: programs on which a profile's settings show."""

import json
import os
import resource
import select
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

ROUNDS, ANSWER_S = 300, 150e-6
CROWD = 20
SEGS_IN_AT = 140
CONNECT = "import socket, sys, time; s = socket.create_connection((sys.argv[1], int(sys.argv[2]))); print(time.monotonic())"


def served(host, port):
    return socket.create_server((host, int(port)))


def work():
    end = time.perf_counter() + ANSWER_S
    while time.perf_counter() < end:
        pass


def sleeps():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def answer(host, port):
    """Each answer takes 150 us of work."""
    sock = served(host, port).accept()[0]
    while sock.recv(1):
        work()
        sock.send(b".")


def ask(host, port):
    sock = socket.create_connection((host, int(port)))
    before = sleeps()
    for _ in range(ROUNDS):
        sock.send(b".")
        sock.recv(1)
    print(sleeps() - before, flush=True)


def answer_all(host, port):
    """Answers whatever comes on many connections, and says how often that slept."""
    listener = served(host, port)
    everybody = select.epoll()
    socks = {sock.fileno(): sock for sock in (listener.accept()[0] for _ in range(CROWD))}
    for fd in socks:
        everybody.register(fd, select.EPOLLIN)
    before = sleeps()
    while socks:
        for fd, _ in everybody.poll():
            if data := socks[fd].recv(1):
                socks[fd].send(data)
            else:
                everybody.unregister(fd)
                socks.pop(fd).close()
    print(sleeps() - before, flush=True)


def ask_all(host, port):
    """Asks on many connections at once, works a while, and asks again."""
    socks = [socket.create_connection((host, int(port))) for _ in range(CROWD)]
    for _ in range(ROUNDS):
        for sock in socks:
            sock.send(b".")
        for sock in socks:
            sock.recv(1)
        work()


def outside(host, port):
    """How late a wait for a connection, and for something that only the kernel knows of, returns for the latter, seconds."""
    listener = served(host, port)
    near, far = socket.create_connection((host, int(port))), listener.accept()[0]
    reader, writer = os.pipe()
    late = {}

    def measure(name, wait):
        def write():
            time.sleep(0.005)
            at.append(time.monotonic())
            os.write(writer, b".")

        delays = []
        for _ in range(5):
            at = []
            thread = threading.Thread(target=write)
            thread.start()
            wait()
            delays.append(time.monotonic() - at[0])
            thread.join()
            os.read(reader, 1)
        late[name] = statistics.median(delays)

    both = select.epoll()
    polled = select.poll()
    for fd in (near.fileno(), reader):
        both.register(fd, select.EPOLLIN)
        polled.register(fd, select.POLLIN)
    measure("epoll_wait", both.poll)
    measure("poll", polled.poll)
    measure("select", lambda: select.select([near, reader], [], []))
    plain = os.environ | {"TOWPATH_DISABLE": "1"}
    client = subprocess.Popen([sys.executable, "-c", CONNECT, host, port], env=plain, stdout=subprocess.PIPE, text=True)
    listener.accept()
    end = time.monotonic()
    late["accept"] = end - float(client.communicate()[0])
    far.close()
    print(json.dumps(late), flush=True)


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
    {f.__name__: f for f in (answer, ask, answer_all, ask_all, outside, hold, write, trickle, take)}[sys.argv[1]](*sys.argv[2:])
