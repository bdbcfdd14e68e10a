"""Ends that stop for seconds in the middle of flows: the service, the kernel's application, Towpath's application. Nothing is reset, the
flows go on, and little is sent again."""

import os
import signal
import time

from lib.process import require
from lib.registry import add
from lib.world import WAYS
from meeting.flows import MIB, Meeting, rpc, stream

# Before the stop, and after it until the conversations end.
BEFORE_S, AFTER_S = 0.4, 1.0
# What the kernel sent while the service was stopped lies in the port's queue: its timers may send again once per flow before they see it. A
# stream adds tail loss probes of its own whenever the machine is busy; going back to the oldest byte would be hundreds of segments.
SPURIOUS = {"rpc": 1, "stream": 10}
# Long enough for every timer that fell due during the stop, short enough that few of a busy machine's tail loss probes fall into it.
SETTLED_S = 0.03


def flows(seconds):
    """Conversations and streams both ways that are all in full swing when the stop comes."""
    return [
        rpc("client_asks", "connect", 21, 1 << 30, seconds=seconds),
        rpc("server_answers", "listen", 22, 1 << 30, seconds=seconds),
        stream("sends", "connect", 23, to_kernel=MIB, seconds=seconds),
        stream("receives", "listen", 24, to_towpath=MIB, close=("late", "half"), seconds=seconds),
    ]


def retransmits(world, meeting):
    """Segments that the service sent again, by flow; the end that listens tells the flow's port."""
    rows = [row for row in world.sockets() if row["kind"] == "flow"]
    counts = {}
    for flow, port in zip(meeting.flows, meeting.ports):
        own = "local" if flow["towpath"] == "listen" else "remote"
        counts[flow["name"]] = sum(row["retransmits"] for row in rows if row[own].endswith(f":{port}"))
    return counts


def stop(who, seconds):
    """SIGSTOP to one process, then SIGCONT."""

    def run(w):
        meeting = Meeting(w, flows(BEFORE_S + seconds + AFTER_S), seconds + 20)
        process = {"service": lambda: w.service, "kernel": lambda: meeting.kernel, "towpath": lambda: meeting.towpath}[who]()
        time.sleep(BEFORE_S)
        traffic, before = w.stat()["traffic"], retransmits(w, meeting)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        while_stopped = None if who == "service" else w.stat()["traffic"]
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(SETTLED_S)
        after = retransmits(w, meeting)
        results = meeting.finish(seconds + 20)
        again = {name: after[name] - count for name, count in before.items()}
        for name, ends in results.items():
            longest = max(end.get("longest_us", 0) for end in ends) / 1e6
            require(longest < seconds + 1 + 0.5 * seconds, f"{name}: stopped for {seconds} s, waited for {longest:.1f} s")
        if who == "service":
            kinds = {flow["name"]: flow["kind"] for flow in meeting.flows}
            require(all(n <= SPURIOUS[kinds[name]] for name, n in again.items()), f"sent again after the stop: {again}")
        said = [f"sent again by Towpath {list(again.values())}", f"by the kernel {[ends[1].get('retransmits') for ends in results.values()]}"]
        if while_stopped:
            quiet = while_stopped["sent_packets"] - traffic["sent_packets"]
            said.append(f"{quiet} packets sent during the stop")
        return "; ".join(said)

    return run


def add_stops(seconds, limit_s):
    for who in ("service", "kernel", "towpath"):
        add(f"stop.{who}_{seconds}s", stop(who, seconds), WAYS["tap_server"], limit_s)


for short in (1, 2, 5):
    add_stops(short, 60)
# Only with --long.
LONG_S = 60
add_stops(LONG_S, 240)
