"""Seeded meetings over a bad path: each seed draws the faults, the options of both sides, the flows, and in which order their ends close."""

import random
from functools import partial

from lib.registry import Test
from lib.world import WAYS
from meeting.cells import KERNEL_CONGESTION, OPTIONS, flags, need_congestion, prove_port, set_kernel
from meeting.flows import KIB, MIB, meet, rpc, stream

FAULTS = ("loss", "reorder", "duplicate", "corrupt", "truncate")
SWALLOWING = ("loss", "corrupt", "truncate")
SWALLOWED_MAX = 5
# Percent; each fault is there or not.
RATES = (0, 0, 0.1, 0.5, 1, 2, 5)
TOWPATH_CONGESTION = ("cubic", "reno", "dctcp")
# Towpath's end, the kernel's; who waits for the other's end of stream, or closes with what it counted.
CLOSES = (("half", "half"), ("half", "late"), ("late", "half"), ("close", "close"), ("close", "late"), ("late", "close"), ("half", "close"))
LIMIT_S = 150


def log_uniform(rng, low, high):
    """Small sizes as often as large ones."""
    return int(low * (high / low) ** rng.random())


def draw_faults(rng):
    drawn = {fault: rng.choice(RATES) for fault in FAULTS}
    # The more a path swallows the longer Linux waits: its timeout doubles with every loss of what it sent again, to two minutes.
    swallowed = sum(drawn[fault] for fault in SWALLOWING)
    for fault in SWALLOWING:
        drawn[fault] *= min(1, SWALLOWED_MAX / max(swallowed, 1))
    words = [word for fault, rate in drawn.items() if rate for word in (f"--fault-{fault}", f"{rate:.4f}%")]
    return (*words, "--fault-seed", str(rng.randrange(1 << 32)))


def draw_flow(rng, number):
    towpath, seed = rng.choice(("connect", "listen")), rng.randrange(1 << 40)
    ends = {
        "of_towpath": {"write_max": log_uniform(rng, 1 * KIB, 512 * KIB), "read_max": log_uniform(rng, 1 * KIB, 512 * KIB)},
        "of_kernel": {"write_max": log_uniform(rng, 1 * KIB, 512 * KIB), "read_max": log_uniform(rng, 1 * KIB, 512 * KIB)},
        "no_delay": rng.random() < 0.5,
    }
    if rng.random() < 0.3:
        return rpc(f"rpc{number}", towpath, seed, rng.randint(1, 60), log_uniform(rng, 1, 20_000), **ends | {"no_delay": True})
    sizes = {"to_kernel": log_uniform(rng, 1, MIB), "to_towpath": log_uniform(rng, 1, MIB)}
    which = rng.random()
    if which < 0.35:
        sizes["to_kernel"] = 0
    elif which < 0.7:
        sizes["to_towpath"] = 0
    return stream(f"stream{number}", towpath, seed, close=rng.choice(CLOSES), **sizes, **ends)


def draw(seed):
    """Everything about a seed: kernel's congestion control and switches, flags of the service, flows."""
    rng = random.Random(seed)
    switches = [{name: rng.random() < 0.7 for name in OPTIONS} for _ in range(2)]
    up = flags(rng.choice(TOWPATH_CONGESTION), switches[1], "clean") + draw_faults(rng)
    if rng.random() < 0.2:
        up += (rng.choice(("--no-gso", "--no-checksum-offload")),)
    flows = [draw_flow(rng, number) for number in range(rng.randint(1, 6))]
    return rng.choice(KERNEL_CONGESTION), switches[0], up, flows


def run_seed(seed, w):
    congestion, switches, up, flows = draw(seed)
    try:
        set_kernel(switches)
        more = need_congestion(congestion)
        for flow in flows:
            flow["of_kernel"] |= more["of_kernel"]
        meet(w, flows, LIMIT_S - 10)
        traffic = prove_port(w, 0, 0, damaged=True)
    except Exception as problem:
        problem.add_note(f"seed {seed}: kernel {congestion} {switches}; towpath {' '.join(up)}")
        problem.add_note(f"replay with: tests/interop/seeds 1 --first {seed}")
        raise
    return ", ".join(f"{n} {cause}" for cause, n in traffic["dropped"].items())


def test_of(seed):
    return Test(
        f"seed_{seed}",
        partial(run_seed, seed),
        way=WAYS["tap_server"],
        limit_s=LIMIT_S,
        kernel=False,
        up=draw(seed)[2],
    )
