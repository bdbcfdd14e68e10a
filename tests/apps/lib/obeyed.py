"""Socket options are obeyed on connections over the port: what the kernel's TCP at the other end sees of them."""

import subprocess

from lib.links import Machine
from lib.process import HANG_S, require, until
from lib.registry import test
from lib.world import HOST_ADDRESS, PEERS, PYTHON, SERVICE_ADDRESS, find, free_port


def lines(process):
    """What it has printed when it has ended well, as it must within HANG_S: a case names what would last longer."""
    return process.succeed(HANG_S).splitlines()


def told(w, seen, *arguments):
    """Runs one case of peers/obeyed.py: an accelerated client, and a kernel server behind the interface."""
    far = Machine(w, "far", HOST_ADDRESS, "tp0")
    w.up("--port", "packet:tp0", "--address", f"{SERVICE_ADDRESS}/24")
    port = free_port()
    program = [*PYTHON, PEERS / "obeyed.py"]
    server = far.start("server", [*program, "serve", HOST_ADDRESS, port, seen])
    until(lambda: far.listens(port), HANG_S, "the server listens")
    client = w.start("client", [*program, *arguments, HOST_ADDRESS, port], accelerated=True, launcher=False)
    return far, server, client


def silence(far):
    """The peer hears and says nothing any more."""
    subprocess.run([*far.inside(), find("ip"), "link", "set", "eth0", "down"], check=True)


def go_on(w):
    """The client waits for this file."""
    (w.directory / "go-on").touch()


def obeyed(name, limit_s=150):
    return test(f"obeyed.{name}", kernel=False, own_service=True, namespace=True, limit_s=limit_s)


@obeyed("cork")
def cork(w):
    """What is corked arrives in one piece when the cork goes, and after about 200 ms when it does not."""
    _, server, client = told(w, "pieces", "cork")
    # Without the 200 ms the client waits for ever for what it has corked and left alone.
    *corked, left_alone, the_end = [line.split() for line in lines(client)]
    for what, *sizes in corked:
        require(sizes == ["1000"], f"{what}: pieces as they came: {sizes}")
    require(left_alone[1:-1] == ["100"] and float(left_alone[-1]) >= 0.15, f"what is left corked: {left_alone}")
    sizes = lines(server)
    require(sizes[-1] == "1000" or the_end[1] == "slow", f"pieces as they came: {sizes}")
    w.prove_accelerated(1)


@obeyed("max_segment")
def max_segment(w):
    """The kernel is told of small segments, and gets none that is larger."""
    _, server, client = told(w, "segments", "max_segment", 600)
    require(lines(client)[0] in ("588", "600"), "getsockopt(TCP_MAXSEG), with or without timestamps")
    largest, _ = (int(word) for word in lines(server)[-1].split())
    require(largest <= 600, f"tcpi_rcv_mss, tcpi_snd_mss: {largest}")
    w.prove_accelerated(1)


@obeyed("congestion")
def congestion(w):
    _, server, client = told(w, "end", "congestion")
    require(lines(client) == ["cubic", "reno", "dctcp", "ENOENT", "dctcp"], "names")
    server.succeed(HANG_S)
    w.prove_accelerated(1)


@obeyed("linger_reset")
def linger_reset(w):
    _, server, client = told(w, "end", "linger_reset")
    client.succeed(HANG_S)
    require(lines(server)[-1] == "ECONNRESET", "the kernel was not reset")
    w.prove_accelerated(1)


@obeyed("user_timeout")
def user_timeout(w):
    """The peer is gone with data on the way: ETIMEDOUT, not before the time that was set."""
    far, _, client = told(w, "hold", "user_timeout", 1500)
    client.until_prints("sending", HANG_S)
    silence(far)
    go_on(w)
    # Without the option TCP sends again for a quarter of an hour.
    error, seconds = lines(client)[-1].split()
    require(error == "ETIMEDOUT" and float(seconds) >= 1.3, f"{error} after {seconds} s")
    w.prove_accelerated(1)


@obeyed("keepalive")
def keepalive(w):
    """An idle connection to a dead peer: 2 s, and two probes a second apart. By default there would be nine, and 75 s apart."""
    far, _, client = told(w, "hold", "keepalive", 2, 1, 2)
    client.until_prints("idle", HANG_S)
    silence(far)
    before = w.stat()["traffic"]["segments_out"]
    # Without the options it ends after two hours, without the interval after two minutes and a half.
    error, seconds = lines(client)[-1].split()
    probes = w.stat()["traffic"]["segments_out"] - before
    require(error == "ETIMEDOUT" and float(seconds) >= 3 and probes <= 2, f"{error} after {seconds} s and {probes} probes")
    w.prove_accelerated(1)


@obeyed("syn_count")
def syn_count(w):
    """Nobody answers: one SYN more than was asked for again, at 1 and 3 seconds."""
    far, _, client = told(w, "hold", "syn_count", 1)
    client.until_prints("ready", HANG_S)
    silence(far)
    go_on(w)
    # Without the option it is asked six times again, and given up after 127 seconds.
    error, seconds = lines(client)[-1].split()
    require(error in ("ETIMEDOUT", "EHOSTUNREACH") and float(seconds) >= 2.5, f"{error} after {seconds} s")


@obeyed("receive_buffer")
def receive_buffer(w):
    """A reader that does not read: the kernel sends no more than was asked for, at the beginning and after much was read."""
    _, server, client = told(w, "flood", "receive_buffer", 20_000)
    windows = [int(line) for line in lines(server)]
    go_on(w)
    client.succeed(HANG_S)
    require(len(windows) > 5 and 0 < max(windows) <= 20_000, f"windows as the kernel saw them: {windows}")
    w.prove_accelerated(1)


@obeyed("tos")
def tos(w):
    """The class of the packets that open a connection, without congestion notification's bits; the kernel shows it."""
    _, server, client = told(w, "service_class", "tos", 0xBB)
    require(lines(client) == ["184"], "getsockopt(IP_TOS)")
    require(lines(server)[0] == "184", "the class that the kernel saw")
    w.prove_accelerated(1)
