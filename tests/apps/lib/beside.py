"""A service on an interface that the kernel uses, too, and on a link where addresses are taken."""

import json
import subprocess
from pathlib import Path

from lib.links import MIB, Machine, between, ip, peer
from lib.process import require
from lib.registry import test
from lib.world import HOST_ADDRESS, HOST_ADDRESS_V6, SERVICE_ADDRESS, SERVICE_ADDRESS_V6, find, free_port

# The address that this side's kernel has on the interface, beside the service's.
KERNEL_ADDRESS = "10.77.0.3"


class Here:
    """This side's kernel, as a machine that another one talks to."""

    def __init__(self, w, far):
        self.w, self.address = w, KERNEL_ADDRESS
        self.far = far

    def start(self, name, command):
        return self.w.start(name, command)

    def listens(self, port):
        return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in Path("/proc/net/tcp").read_text().splitlines()[1:])


def received(w):
    """Frames that the service got, and what it dropped."""
    traffic = w.stat()["traffic"]
    return traffic["received_packets"], traffic["dropped"]


def mac_of(interface):
    shown = subprocess.run([find("ip"), "-j", "link", "show", interface], capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)[0]["address"]


def beside(name, *flags):
    def run(w):
        far = Machine(w, "far", HOST_ADDRESS, "tp0")
        ip("address", "add", f"{KERNEL_ADDRESS}/24", "dev", "tp0")
        w.up("--port", "packet:tp0", "--address", f"{SERVICE_ADDRESS}/24", *(flag(w) for flag in flags))
        here = Here(w, far)
        before = received(w)
        between(far, here, "rtt.py", [2000], [2000])
        for direction, opposite in (("send", "receive"), ("receive", "send")):
            between(far, here, "bulk.py", [direction, 20 * MIB], [opposite, 20 * MIB])
        after = received(w)
        require(after == before, f"of the kernel's traffic the service got frames: {before} before, {after} after")
        # It is there all the same.
        port = free_port()
        server = w.start("accelerated", peer("bulk.py", "listen", "0.0.0.0", port, "receive", MIB), accelerated=True, launcher=False)
        w.until_listening(server, port, True)
        far.start("client", peer("bulk.py", "connect", SERVICE_ADDRESS, port, "send", MIB)).succeed(40)
        server.succeed(10)
        dropped = received(w)[1]
        require("exception_lost" not in dropped, f"frames were lost on their way to the slow path: {dropped}")

    test(f"packet.{name}", kernel=False, own_service=True, namespace=True, limit_s=90)(run)


beside("the_kernels_traffic_is_not_handed_over")
beside("nor_where_both_have_one_ethernet_address", lambda _: "--mac", lambda _: mac_of("tp0"))


def refused(w, *flags):
    """What `up` says where it does not start."""
    done = w.command("up", *flags)
    require(done.returncode != 0, f"the service starts with {flags}")
    return done.stderr


@test("packet.address_of_another_station_is_refused", kernel=False, own_service=True, namespace=True, limit_s=60)
def address_of_another_station_is_refused(w):
    far = Machine(w, "far", HOST_ADDRESS, "tp0")
    far.start("address", ["ip", "-6", "address", "add", f"{HOST_ADDRESS_V6}/64", "dev", "eth0", "nodad"]).succeed(10)
    port = ("--port", "packet:tp0")
    for taken, prefix in ((HOST_ADDRESS, 24), (HOST_ADDRESS_V6, 64)):
        text = refused(w, *port, "--address", f"{taken}/{prefix}")
        require(taken in text and "in use on the link" in text and "--address" in text, text)
    text = refused(w, *port, "--address", f"{SERVICE_ADDRESS}/24,{HOST_ADDRESS_V6}/64")
    require(HOST_ADDRESS_V6 in text, f"one of two is taken: {text}")
    w.up(*port, "--address", f"{SERVICE_ADDRESS}/24,{SERVICE_ADDRESS_V6}/64")


@test("tap.address_of_the_host_is_refused", kernel=False, own_service=True, namespace=True, limit_s=60)
def address_of_the_host_is_refused(w):
    """On any interface of the host's, for the kernel answers for all of them on each."""
    ip("address", "add", "192.0.2.7/24", "dev", "lo")
    text = refused(w, "--port", "tap:tp0", "--address", "192.0.2.7/24", "--host-address", "192.0.2.1/24")
    require("192.0.2.7" in text and "--address" in text, text)


@test("port.gateway_on_no_link_is_refused", kernel=False, own_service=True)
def gateway_on_no_link_is_refused(w):
    text = refused(w, "--port", "tap:tp0", "--address", f"{SERVICE_ADDRESS}/24", "--gateway", "10.78.0.1")
    require("--gateway 10.78.0.1" in text and "--address" in text, text)
