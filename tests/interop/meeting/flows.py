"""Runs several flows between the kernel and Towpath at once, and judges what both ends say of them."""

import json
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from lib.process import Failure, require
from lib.world import HOST_ADDRESS, PYTHON, SERVICE_ADDRESS, TAP, find, free_port, run_towpath

PEER = Path(__file__).resolve().parent.parent / "peers" / "end.py"
INTERFACE = TAP[TAP.index("--port-name") + 1]
# Towpath's end of a pair of virtual interfaces.
VETH_INTERFACE = "tv0"
KIB, MIB = 1 << 10, 1 << 20
ENDLESS = 1 << 50
OPPOSITE = {"listen": "connect", "connect": "listen"}


def stream(name, towpath, seed, to_kernel=0, to_towpath=0, close=("half", "late"), **more):
    """A flow of so many bytes each way; `towpath` is what Towpath's end does: `connect` or `listen`. `close`: Towpath's end, the kernel's."""
    return {"kind": "stream", "name": name, "towpath": towpath, "seed": seed, "bytes": (to_kernel, to_towpath), "close": close} | more


def rpc(name, towpath, seed, rounds, size_max=600, **more):
    """A conversation of so many requests."""
    flow = {"kind": "rpc", "name": name, "towpath": towpath, "seed": seed, "rounds": rounds, "size_max": size_max}
    return flow | {"bytes": (0, 0), "close": ("late", "late"), "no_delay": True} | more


def plan_of(flow, side, port, patience_s):
    """One end's part of a flow; side 0 is Towpath's."""
    role = flow["towpath"] if side == 0 else OPPOSITE[flow["towpath"]]
    listens_at = "0.0.0.0" if side == 0 else HOST_ADDRESS
    # Of an RPC the first seed is the request's, whoever asks.
    first = role == "connect" if flow["kind"] == "rpc" else side == 0
    send, receive = flow["bytes"][side], flow["bytes"][1 - side]
    if flow.get("seconds") and flow["kind"] == "stream":
        send, receive = (ENDLESS if send else 0), (ENDLESS if receive else 0)
    plan = {"write_max": 256 * KIB, "read_max": 256 * KIB, "patience_s": patience_s} | flow
    return plan | flow.get(("of_towpath", "of_kernel")[side], {}) | {
        "role": role,
        "host": listens_at if role == "listen" else (HOST_ADDRESS, SERVICE_ADDRESS)[side],
        "port": port,
        "send_seed": flow["seed"] * 2 + (not first),
        "receive_seed": flow["seed"] * 2 + first,
        "send_bytes": send,
        "receive_bytes": receive,
        "close": flow["close"][side],
    }


class Meeting:
    """Both ends of some flows, started."""

    def __init__(self, world, flows, patience_s=30):
        self.world, self.flows = world, flows
        self.ports = [free_port() for _ in flows]
        self.ends = []
        for side, name in enumerate(("towpath-end", "kernel-end")):
            plan = world.directory / f"{name}.json"
            plan.write_text(json.dumps([plan_of(f, side, p, patience_s) for f, p in zip(flows, self.ports)]))
            command = [*PYTHON, PEER, plan]
            self.ends.append(world.start(name, command, side == 0, launcher=False, stdin=subprocess.PIPE))
        for end in self.ends:
            end.until_prints("ready")
        for end in self.ends:
            end.popen.stdin.write(b"\n")
            end.popen.stdin.close()

    @property
    def towpath(self):
        return self.ends[0]

    @property
    def kernel(self):
        return self.ends[1]

    def finish(self, seconds):
        """Waits for the end; returns, by flow, what Towpath's end and the kernel's say. Every byte arrived, in order."""
        by_side = []
        for end in self.ends:
            try:
                said = end.succeed(seconds)
            except Failure as problem:
                self.explain(problem)
                raise
            by_side.append({r["name"]: r for r in map(json.loads, said.splitlines()[1:])})
        results = {f["name"]: [side[f["name"]] for side in by_side] for f in self.flows}
        for flow in self.flows:
            judge(flow, results[flow["name"]])
        self.world.prove_accelerated(len(self.flows))
        return results

    def explain(self, problem):
        """What the service and the kernel say of connections that are still there."""
        for row in self.world.sockets():
            problem.add_note(f"towpath: {json.dumps(row)}")
        kernel = run_towpath([find("ss"), "--tcp", "--info", "--numeric", "--options", "--oneline"]).stdout
        for line in kernel.splitlines():
            problem.add_note(f"kernel: {line}")
        neighbours = run_towpath([find("ip"), "neighbour"]).stdout.strip()
        problem.add_note(f"neighbours: {neighbours}; traffic: {self.world.stat()['traffic']}")


def judge(flow, ends):
    name = flow["name"]
    for who, end in zip(("Towpath's", "the kernel's"), ends):
        require("error" not in end, f"{name}: {who} end: {end.get('error')} after {end.get('sent')} sent, {end.get('received')} received")
        require("wrong_at" not in end, f"{name}: {who} end received a wrong byte at {end.get('wrong_at')}")
    for who, sender, receiver in (("to the kernel", ends[0], ends[1]), ("to Towpath", ends[1], ends[0])):
        require(sender["sent"] == receiver["received"], f"{name} {who}: {sender['sent']} bytes sent, {receiver['received']} received")
    if flow["kind"] == "rpc":
        require(ends[0]["rounds"] == ends[1]["rounds"] > 0, f"{name}: {ends[0]['rounds']} and {ends[1]['rounds']} rounds")
        require(flow.get("seconds") or ends[0]["rounds"] == flow["rounds"], f"{name}: {ends[0]['rounds']} rounds")
    elif not flow.get("seconds"):
        require((ends[0]["sent"], ends[1]["sent"]) == tuple(flow["bytes"]), f"{name}: sent {ends[0]['sent']} and {ends[1]['sent']}")


def meet(world, flows, seconds=30):
    """Runs the flows to their end."""
    with captured(world):
        return Meeting(world, flows, seconds).finish(seconds)


@contextmanager
def captured(world):
    """With --capture the headers of what passes the link are written to a file."""
    if world.options.capture is None:
        yield
        return
    file = world.options.capture / f"{world.directory.name}.pcap"
    present = {name for _, name in socket.if_nameindex()}
    interface = INTERFACE if INTERFACE in present else VETH_INTERFACE
    tcpdump = world.start("tcpdump", ["tcpdump", "-U", "--immediate-mode", "-i", interface, "-s", "128", "-B", "65536", "-w", file])
    tcpdump.until_prints("listening on")
    try:
        yield
    finally:
        # Later than what it has still to read.
        time.sleep(0.3)
        tcpdump.kill(signal.SIGTERM)
        tcpdump.wait(5)


def rate(flow, ends):
    """MiB/s of both directions together."""
    return (ends[0]["sent"] + ends[1]["sent"]) / MIB / max(end["seconds"] for end in ends)
