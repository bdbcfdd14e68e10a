"""The corners of TCP's semantics (peers/corners.py), between two processes, each way."""

import sys

from lib.process import require
from lib.registry import add
from lib.world import PEERS, PYTHON, WAYS, Way, free_port

sys.path.insert(0, str(PEERS))
from corners import CORNERS  # noqa: E402

IPV6 = Way("ipv6", True, True, "::1", "::1")
OTHER_LOOPBACK = Way("127_0_0_2", True, True, "127.0.0.2", "127.0.0.2")


def corner(name):
    def run(w):
        port = free_port()
        program = [*PYTHON, PEERS / "corners.py", name]
        how = {"launcher": False, "environment": getattr(CORNERS[name], "environment", None)}
        server = w.server("server", [*program, "server", w.way.listen, port], port, **how)
        client = w.client("client", [*program, "client", w.way.target, port], **how)
        client.succeed()
        status = server.wait()
        require(status == getattr(CORNERS[name], "status", 0), f"the server ended with status {status}")
        w.prove_way(1, getattr(CORNERS[name], "fallen_back", 0))

    return run


def told(name):
    """A C program that asks the socket itself, by the kernel's headers: over the port everything is measured."""

    def run(w):
        port = free_port()
        server = w.server("server", [w.program(name), "serve", w.way.listen, port], port, launcher=False)
        over_tcp = ["measured"] if w.way.tap or w.kernel else []
        client = w.client("client", [w.program(name), "connect", w.way.target, port, *over_tcp], launcher=False)
        client.succeed()
        require(server.wait() == 0, "the server failed")
        w.prove_way(1)

    return run


EVERYWHERE = (*(WAYS[name] for name in WAYS), IPV6)
# A listener bound to an address that only the service has.
BOUND = Way("tap_bound", True, False, "10.77.0.2", "10.77.0.2", up=WAYS["tap_server"].up)
SOME = ("half_close", "reset_by_linger", "close_after_send", "backpressure", "options")

for name in ("pair", "relay", "tap_client", "tap_server", "tap6_client"):
    for program in ("tcp_info", "send_room"):
        add(f"{name}.{program}", told(program), WAYS[name])
for one_way in EVERYWHERE:
    for corner_name in CORNERS:
        add(f"{one_way.name}.{corner_name}", corner(corner_name), one_way)
for corner_name in SOME:
    add(f"{OTHER_LOOPBACK.name}.{corner_name}", corner(corner_name), OTHER_LOOPBACK)
    add(f"{BOUND.name}.{corner_name}", corner(corner_name), BOUND, kernel=False)
