"""An emulated link between two kernels, and the service on an interface that exists."""

import os
import subprocess

from lib.emulated import emulate, finish
from lib.process import require, until
from lib.registry import test
from lib.world import HOST_ADDRESS, PEERS, PYTHON, SERVICE_ADDRESS, find, free_port

MIB = 1 << 20


def ip(*words):
    subprocess.run([find("ip"), *[str(word) for word in words]], check=True)


class Machine:
    """A network namespace that lives as long as the test, with one interface `eth0` whose far end is here as `far`."""

    def __init__(self, w, name, address, far):
        self.w, self.address = w, address
        self.holder = w.start(name, [find("unshare"), "--net", "sleep", 600])
        # Until it has left our namespace, an interface given to it would come back to us.
        until(lambda: namespace(self.holder.pid) != namespace("self"), 5, f"{name} has a network of its own")
        ip("link", "add", far, "type", "veth", "peer", "name", f"{far}-e")
        ip("link", "set", f"{far}-e", "netns", self.holder.pid, "name", "eth0")
        ip("link", "set", far, "up")
        for words in (("address", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
            subprocess.run([*self.inside(), find("ip"), *words], check=True)

    def inside(self):
        return [find("nsenter"), "--net", "--target", str(self.holder.pid)]

    def start(self, name, command):
        return self.w.start(name, [*self.inside(), *command])

    def listens(self, port):
        shown = subprocess.run([*self.inside(), find("ss"), "-Htln", f"sport = :{port}"], capture_output=True, text=True, check=True)
        return str(port) in shown.stdout


def namespace(pid):
    return os.readlink(f"/proc/{pid}/ns/net")


def peer(program, role, address, port, *rest):
    return [*PYTHON, PEERS / program, role, address, port, *rest]


def between(client, server, program, *rest):
    """Runs `program` from one machine to the other; what both printed. `rest` is for the client, then for the server."""
    port = free_port()
    listening = server.start("server", peer(program, "listen", "0.0.0.0", port, *rest[1]))
    until(lambda: server.listens(port), 10, "the server listens")
    told = client.start("client", peer(program, "connect", server.address, port, *rest[0])).succeed(60)
    return told, listening.succeed(10)


@test("link.loss_and_delay_are_as_told", kernel=False, own_service=True, namespace=True, limit_s=90)
def loss_and_delay_are_as_told(w):
    blue, red = Machine(w, "blue", "10.9.0.1", "va"), Machine(w, "red", "10.9.0.2", "vb")
    link = emulate(w, "--both", "delay=1ms,loss=1%", "--seed", 7)
    rtt_us = int(between(blue, red, "rtt.py", [100], [100])[0])
    require(2_000 <= rtt_us, f"two delays of 1 ms, and a round trip of {rtt_us} us")
    size = 60 * MIB
    between(blue, red, "bulk.py", ["send", size], ["receive", size])
    report = finish(link)
    forward = report["forward"]
    share = forward["lost"] / forward["offered"]
    # 60 MiB are at least 40,000 segments: one standard deviation is 0.05 %.
    require(40_000 <= forward["offered"], f"super-frames were not taken apart: {forward}")
    require(0.0075 <= share <= 0.0125, f"lost {share:.4f} of the segments")
    require(forward["delivered"] + forward["lost"] == forward["offered"] and forward["failed"] == 0, f"{forward}")
    return f"round trip {rtt_us} us, lost {share * 100:.2f} % of {forward['offered']} segments"


@test("link.damage_is_noticed", kernel=False, own_service=True, namespace=True, limit_s=90)
def damage_is_noticed(w):
    blue, red = Machine(w, "blue", "10.9.0.1", "va"), Machine(w, "red", "10.9.0.2", "vb")
    link = emulate(w, "--both", "rate=1gbit,queue=200p,corrupt=0.2%,truncate=0.2%,duplicate=1%,reorder=1%/200us,ecn=50p")
    size = 20 * MIB
    between(blue, red, "bulk.py", ["send", size], ["receive", size])
    forward = finish(link)["forward"]
    for what in ("corrupted", "truncated", "duplicated", "reordered"):
        require(forward[what] > 0, f"nothing was {what}: {forward}")
    require(forward["queue_packets_max"] <= 200 and forward["failed"] == 0, f"{forward}")


def packet_service(w):
    """A machine on the far side of an interface that is the service's port."""
    far = Machine(w, "far", HOST_ADDRESS, "tp0")
    w.up("--port", "packet:tp0", "--address", f"{SERVICE_ADDRESS}/24")
    return far


@test("packet.server", kernel=False, own_service=True, namespace=True, limit_s=60)
def packet_server(w):
    """The far kernel connects to an accelerated program; no kernel of ours has the address."""
    far, size = packet_service(w), 100 * MIB
    for direction, opposite in (("send", "receive"), ("receive", "send")):
        port = free_port()
        server = w.start("server", peer("bulk.py", "listen", "0.0.0.0", port, opposite, size), accelerated=True, launcher=False)
        w.until_listening(server, port, True)
        told = far.start("client", peer("bulk.py", "connect", SERVICE_ADDRESS, port, direction, size)).succeed(40)
        require(told == server.succeed(10), "SHA-256 of the ends differ")
    w.prove_accelerated(2)


@test("packet.client", kernel=False, own_service=True, namespace=True, limit_s=60)
def packet_client(w):
    """An accelerated program connects to the far kernel."""
    far, size = packet_service(w), 100 * MIB
    for direction, opposite in (("send", "receive"), ("receive", "send")):
        port = free_port()
        server = far.start("server", peer("bulk.py", "listen", HOST_ADDRESS, port, opposite, size))
        until(lambda: far.listens(port), 10, "the server listens")
        command = peer("bulk.py", "connect", HOST_ADDRESS, port, direction, size)
        told = w.start("client", command, accelerated=True, launcher=False).succeed(40)
        require(told == server.succeed(10), "SHA-256 of the ends differ")
    w.prove_accelerated(2)
