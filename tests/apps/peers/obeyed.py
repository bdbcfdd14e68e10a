"""Ends of connections on which one option matters. `serve ADDRESS PORT WHAT` or `CASE [NUMBER...] ADDRESS PORT`. Some
cases wait for the file `go-on` in their directory."""

import errno
import os
import socket
import struct
import sys
import time

TCP = socket.IPPROTO_TCP
# linux/in.h
IP_PKTOPTIONS = 9


def name(problem):
    return errno.errorcode.get(problem.errno, str(problem))


def show(*words):
    print(*words, flush=True)


def wait_to_go_on():
    while not os.path.exists("go-on"):
        time.sleep(0.01)


def pieces(conn):
    """The size of each piece as it came, which the sender is told too: only then does it send what does not belong to it."""
    while data := conn.recv(65536):
        show(len(data))
        conn.sendall(struct.pack("I", len(data)))


def segments(conn):
    """The largest segment of the peer's, and ours, as the kernel sees them."""
    conn.sendall(bytes(100_000))
    while conn.recv(65536):
        pass
    info = conn.getsockopt(TCP, socket.TCP_INFO, 104)
    snd_mss, rcv_mss = struct.unpack_from("II", info, 16)
    show(max(snd_mss, rcv_mss), snd_mss)


def end(conn):
    try:
        while conn.recv(65536):
            pass
        show("end")
    except OSError as problem:
        show(name(problem))


def hold(conn):
    time.sleep(600)


def flood(conn):
    """Sends what goes, and shows forty times the window that the peer leaves: what is in its hands and not acknowledged as read."""
    conn.setblocking(False)
    for _ in range(40):
        try:
            while True:
                conn.send(bytes(16384))
        except BlockingIOError:
            pass
        info = conn.getsockopt(TCP, socket.TCP_INFO, 248)
        # tcpi_snd_wnd
        show(struct.unpack_from("I", info, 228)[0])
        time.sleep(0.1)


def service_class(conn):
    """The service class of the packets that opened the connection: asked for with IP_RECVTOS, told by IP_PKTOPTIONS."""
    told = conn.getsockopt(socket.IPPROTO_IP, IP_PKTOPTIONS, 64)
    # One control message: length, level, type, a byte.
    _, level, kind, tos = struct.unpack_from("qiiB", told)
    show(level == socket.IPPROTO_IP and kind == socket.IP_TOS and tos)
    end(conn)


def serve(address, port, what):
    with socket.create_server((address, int(port))) as listener:
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        conn, _ = listener.accept()
        with conn:
            globals()[what](conn)


def connect(address, port, *options):
    conn = socket.socket()
    for option in options:
        conn.setsockopt(*option)
    conn.connect((address, int(port)))
    return conn


# A cork holds for 200 ms. A sender that took longer than this may have been too slow for it, and tries again.
QUICK_S = 0.15
# In this time what is not held back arrives, alone.
PAUSE_S = 0.005


def arrived(conn, total):
    """The sizes of the pieces in which the peer got so many bytes."""
    sizes = []
    while sum(sizes) < total:
        sizes.append(struct.unpack("I", conn.recv(4, socket.MSG_WAITALL))[0])
    return sizes


def quickly(conn, what, send):
    """Shows the pieces in which 1000 bytes arrived that `send` has sent without being interrupted for long."""
    while True:
        began = time.monotonic()
        send()
        lasted = time.monotonic() - began
        sizes = arrived(conn, 1000)
        if lasted < QUICK_S:
            return show(what, *sizes)


def cork(address, port):
    conn = connect(address, port, (TCP, socket.TCP_NODELAY, 1))

    def taken_away():
        conn.setsockopt(TCP, socket.TCP_CORK, 1)
        for _ in range(10):
            conn.send(bytes(100))
            time.sleep(PAUSE_S)
        conn.setsockopt(TCP, socket.TCP_CORK, 0)

    def more_to_come():
        for _ in range(9):
            conn.send(bytes(100), socket.MSG_MORE)
            time.sleep(PAUSE_S)
        conn.send(bytes(100))

    quickly(conn, "taken_away", taken_away)
    quickly(conn, "more_to_come", more_to_come)
    conn.setsockopt(TCP, socket.TCP_CORK, 1)
    began = time.monotonic()
    conn.send(bytes(100))
    sizes = arrived(conn, 100)
    show("left_alone", *sizes, time.monotonic() - began)
    began = time.monotonic()
    for _ in range(10):
        conn.send(bytes(100))
        time.sleep(PAUSE_S)
    conn.close()
    show("the_end", "quick" if time.monotonic() - began < QUICK_S else "slow")


def max_segment(size, address, port):
    conn = connect(address, port, (TCP, socket.TCP_MAXSEG, int(size)))
    show(conn.getsockopt(TCP, socket.TCP_MAXSEG))
    conn.sendall(bytes(100_000))
    conn.shutdown(socket.SHUT_WR)
    while conn.recv(65536):
        pass


def congestion(address, port):
    def now():
        show(conn.getsockopt(TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode())

    conn = connect(address, port)
    now()
    for wanted in (b"reno", b"dctcp"):
        conn.setsockopt(TCP, socket.TCP_CONGESTION, wanted)
        now()
    try:
        conn.setsockopt(TCP, socket.TCP_CONGESTION, b"nobody")
    except OSError as problem:
        show(name(problem))
    now()


def linger_reset(address, port):
    conn = connect(address, port, (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)))
    conn.sendall(b"x")
    time.sleep(0.2)
    conn.close()


def wait_for_error(conn, began):
    try:
        conn.recv(1)
        show("end", time.monotonic() - began)
    except OSError as problem:
        show(name(problem), time.monotonic() - began)


def user_timeout(ms, address, port):
    conn = connect(address, port, (TCP, socket.TCP_USER_TIMEOUT, int(ms)))
    show("sending")
    wait_to_go_on()
    began = time.monotonic()
    conn.send(b"x")
    wait_for_error(conn, began)


def keepalive(idle, interval, count, address, port):
    began = time.monotonic()
    conn = connect(
        address,
        port,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (TCP, socket.TCP_KEEPIDLE, int(idle)),
        (TCP, socket.TCP_KEEPINTVL, int(interval)),
        (TCP, socket.TCP_KEEPCNT, int(count)),
    )
    show("idle")
    wait_for_error(conn, began)


def syn_count(count, address, port):
    show("ready")
    wait_to_go_on()
    began = time.monotonic()
    try:
        connect(address, port, (TCP, socket.TCP_SYNCNT, int(count)))
        show("connected", time.monotonic() - began)
    except OSError as problem:
        show(name(problem), time.monotonic() - began)


def receive_buffer(size, address, port):
    conn = connect(address, port, (socket.SOL_SOCKET, socket.SO_RCVBUF, int(size)))
    # Some buffers full, then no more.
    left = 20 * int(size)
    while left > 0:
        left -= len(conn.recv(65536))
    wait_to_go_on()


def tos(value, address, port):
    conn = connect(address, port, (socket.IPPROTO_IP, socket.IP_TOS, int(value)))
    show(conn.getsockopt(socket.IPPROTO_IP, socket.IP_TOS))
    conn.sendall(b"x")
    conn.close()


CASES = (
    serve,
    cork,
    max_segment,
    congestion,
    linger_reset,
    user_timeout,
    keepalive,
    syn_count,
    receive_buffer,
    tos,
)

if __name__ == "__main__":
    {f.__name__: f for f in CASES}[sys.argv[1]](*sys.argv[2:])
