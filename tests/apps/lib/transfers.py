"""Long transfers, compared byte for byte, each way, on good links and bad ones."""

import time

from lib.registry import add
from lib.world import PEERS, PYTHON, WAYS, free_port

MIB = 1 << 20
SIZE = 1024 * MIB
OPPOSITE = {"send": "receive", "receive": "send"}


def transfer(w, direction, size, seconds):
    """One connection; `direction` as the client sees it. Returns MiB/s."""
    port = free_port()
    program = [*PYTHON, PEERS / "bulk.py"]
    server = w.server("server", [*program, "listen", w.way.listen, port, OPPOSITE[direction], size], port, launcher=False)
    began = time.monotonic()
    client = w.client("client", [*program, "connect", w.way.target, port, direction, size], launcher=False)
    client.succeed(seconds)
    server.succeed(10)
    return size / MIB / (time.monotonic() - began)


def both_directions(seconds):
    def run(w):
        rates = [transfer(w, direction, SIZE, seconds) for direction in ("send", "receive")]
        w.prove_way(2)
        return f"{SIZE // MIB} MiB each way: client to server {rates[0]:.0f} MiB/s, back {rates[1]:.0f} MiB/s"

    return run


FAULTS = {
    "loss": ("--fault-loss", "1%"),
    "reorder": ("--fault-reorder", "1%"),
    "duplicate": ("--fault-duplicate", "1%"),
    "loss_reorder_duplicate": ("--fault-loss", "1%", "--fault-reorder", "1%", "--fault-duplicate", "1%"),
}

for name in ("pair", "relay", "tap_server", "tap_client"):
    add(f"{name}.bulk", both_directions(60), WAYS[name], limit_s=150)
for fault, flags in FAULTS.items():
    # Every fault alone with the accelerated end as server; all together with it as client, too.
    ways = ("tap_server", "tap_client") if fault == "loss_reorder_duplicate" else ("tap_server",)
    for name in ways:
        add(f"{name}.bulk_{fault}", both_directions(120), WAYS[name], limit_s=300, up=flags)
