"""Ends of connections on which one option matters. `serve ADDRESS PORT WHAT` or `CASE [NUMBER...] ADDRESS PORT`."""

import errno
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


def pieces(conn):
    """Each piece as it came, with its time in milliseconds. The sender pauses between what belongs together."""
    while data := conn.recv(65536):
        show(int(time.monotonic() * 1000), len(data))


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
    time.sleep(60)


def flood(conn):
    """Sends what goes, and shows the window that the peer leaves: what is in its hands and not acknowledged as read."""
    conn.setblocking(False)
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        try:
            while True:
                conn.send(bytes(16384))
        except BlockingIOError:
            pass
        except OSError:
            return
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


def cork(address, port):
    conn = connect(address, port, (TCP, socket.TCP_NODELAY, 1))
    # Taken away.
    conn.setsockopt(TCP, socket.TCP_CORK, 1)
    for _ in range(10):
        conn.send(bytes(100))
    time.sleep(0.05)
    conn.setsockopt(TCP, socket.TCP_CORK, 0)
    time.sleep(0.5)
    # More to come, until a call that does not say so.
    for _ in range(9):
        conn.send(bytes(100), socket.MSG_MORE)
    time.sleep(0.05)
    conn.send(bytes(100))
    time.sleep(0.05)
    # Left alone.
    conn.setsockopt(TCP, socket.TCP_CORK, 1)
    conn.send(bytes(100))
    time.sleep(0.7)
    # The end.
    for _ in range(10):
        conn.send(bytes(100))
    conn.close()


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
    time.sleep(0.5)
    began = time.monotonic()
    conn.send(b"x")
    wait_for_error(conn, began)


def keepalive(idle, interval, count, address, port):
    conn = connect(
        address,
        port,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (TCP, socket.TCP_KEEPIDLE, int(idle)),
        (TCP, socket.TCP_KEEPINTVL, int(interval)),
        (TCP, socket.TCP_KEEPCNT, int(count)),
    )
    show("idle")
    wait_for_error(conn, time.monotonic())


def syn_count(count, address, port):
    show("ready")
    time.sleep(1)
    began = time.monotonic()
    try:
        connect(address, port, (TCP, socket.TCP_SYNCNT, int(count)))
        show("connected", time.monotonic() - began)
    except OSError as problem:
        show(name(problem), time.monotonic() - began)


def receive_buffer(size, address, port):
    conn = connect(address, port, (socket.SOL_SOCKET, socket.SO_RCVBUF, int(size)))
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        conn.recv(65536)
    time.sleep(0.5)


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
