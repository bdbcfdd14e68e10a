"""Socket options are obeyed on connections over the port: what the kernel's TCP at the other end sees of them."""

import subprocess

from lib.links import Machine
from lib.process import require, until
from lib.registry import test
from lib.world import HOST_ADDRESS, PEERS, PYTHON, SERVICE_ADDRESS, find, free_port


def lines(process, seconds=30):
    return process.succeed(seconds).splitlines()


def told(w, seen, *arguments):
    """Runs one case of peers/obeyed.py: an accelerated client, and a kernel server behind the interface."""
    far = Machine(w, "far", HOST_ADDRESS, "tp0")
    w.up("--port", "packet:tp0", "--address", f"{SERVICE_ADDRESS}/24")
    port = free_port()
    program = [*PYTHON, PEERS / "obeyed.py"]
    server = far.start("server", [*program, "serve", HOST_ADDRESS, port, seen])
    until(lambda: far.listens(port), 10, "the server listens")
    client = w.start("client", [*program, *arguments, HOST_ADDRESS, port], accelerated=True, launcher=False)
    return far, server, client


def silence(far):
    """The peer hears and says nothing any more."""
    subprocess.run([*far.inside(), find("ip"), "link", "set", "eth0", "down"], check=True)


def obeyed(name, limit_s=60):
    return test(f"obeyed.{name}", kernel=False, own_service=True, namespace=True, limit_s=limit_s)


@obeyed("cork")
def cork(w):
    """What is corked arrives in one piece when the cork goes, and after about 200 ms when it does not."""
    _, server, client = told(w, "pieces", "cork")
    client.succeed(30)
    pieces = [line.split() for line in lines(server, 10)]
    sizes = [int(size) for _, size in pieces]
    require(sizes == [1000, 1000, 100, 1000], f"pieces as they came: {pieces}")
    waited_ms = int(pieces[2][0]) - int(pieces[1][0])
    require(150 <= waited_ms <= 600, f"the corked piece waited for {waited_ms} ms")
    w.prove_accelerated(1)


@obeyed("max_segment")
def max_segment(w):
    """The kernel is told of small segments, and gets none that is larger."""
    _, server, client = told(w, "segments", "max_segment", 600)
    require(lines(client, 30)[0] in ("588", "600"), "getsockopt(TCP_MAXSEG), with or without timestamps")
    largest, _ = (int(word) for word in lines(server, 10)[-1].split())
    require(largest <= 600, f"tcpi_rcv_mss, tcpi_snd_mss: {largest}")
    w.prove_accelerated(1)


@obeyed("congestion")
def congestion(w):
    _, server, client = told(w, "end", "congestion")
    require(lines(client, 30) == ["cubic", "reno", "dctcp", "ENOENT", "dctcp"], "names")
    server.succeed(10)
    w.prove_accelerated(1)


@obeyed("linger_reset")
def linger_reset(w):
    _, server, client = told(w, "end", "linger_reset")
    client.succeed(30)
    require(lines(server, 10)[-1] == "ECONNRESET", "the kernel was not reset")
    w.prove_accelerated(1)


@obeyed("user_timeout")
def user_timeout(w):
    """The peer is gone with data on the way: ETIMEDOUT after about the time that was set."""
    far, _, client = told(w, "hold", "user_timeout", 1500)
    client.until_prints("sending")
    silence(far)
    error, seconds = lines(client, 30)[-1].split()
    require(error == "ETIMEDOUT" and 1.3 <= float(seconds) <= 6, f"{error} after {seconds} s")
    w.prove_accelerated(1)


@obeyed("keepalive")
def keepalive(w):
    """An idle connection to a dead peer: 2 s, and two probes a second apart."""
    far, _, client = told(w, "hold", "keepalive", 2, 1, 2)
    client.until_prints("idle")
    silence(far)
    error, seconds = lines(client, 30)[-1].split()
    require(error == "ETIMEDOUT" and 3 <= float(seconds) <= 7, f"{error} after {seconds} s")
    w.prove_accelerated(1)


@obeyed("syn_count")
def syn_count(w):
    """Nobody answers: one SYN more than was asked for again, at 1 and 3 seconds."""
    far, _, client = told(w, "hold", "syn_count", 1)
    client.until_prints("ready")
    silence(far)
    error, seconds = lines(client, 30)[-1].split()
    require(error in ("ETIMEDOUT", "EHOSTUNREACH") and 2.5 <= float(seconds) <= 8, f"{error} after {seconds} s")


@obeyed("receive_buffer")
def receive_buffer(w):
    """A reader that does not read: the kernel sends no more than was asked for, at the beginning and after much was read."""
    _, server, client = told(w, "flood", "receive_buffer", 20_000)
    client.succeed(30)
    windows = [int(line) for line in lines(server, 10)]
    require(len(windows) > 5 and 0 < max(windows) <= 20_000, f"windows as the kernel saw them: {windows}")
    w.prove_accelerated(1)


@obeyed("tos")
def tos(w):
    """The class of the packets that open a connection, without congestion notification's bits; the kernel shows it."""
    _, server, client = told(w, "service_class", "tos", 0xBB)
    require(lines(client, 30) == ["184"], "getsockopt(IP_TOS)")
    require(lines(server, 10)[0] == "184", "the class that the kernel saw")
    w.prove_accelerated(1)
