"""A path that marks where it would drop (RFC 3168): both ends slow down by marks alone, and nothing is lost or sent again."""

import subprocess
from pathlib import Path

from lib.emulated import emulate, finish
from lib.process import Skip, require
from lib.registry import add
from lib.world import HOST_ADDRESS, find
from meeting.cells import BULK, LIMIT_S, OPTIONS, VETH, flags, flows, prove_options, prove_port, set_kernel
from meeting.flows import meet

# Slow enough that a queue forms on a busy machine, too. At 100 Mbit/s the twenty packets from which on it marks are 2.4 ms;
# the rest is for slow starts that overshoot together.
PATH = "rate=100mbit,delay=1ms,queue=2000p,ecn=20p"
# Tail loss probes of a busy machine: nothing is lost.
PROBES_MAX = 8
SEGMENT = 1448
ALL_ON = {name: True for name in OPTIONS}


def lay():
    """The kernel at `tk0`, the service at `tv0`, and between them the link's two ends."""
    for words in ("add tv0 type veth peer name va", "add tk0 type veth peer name vb"):
        subprocess.run([find("ip"), "link", *words.split()], check=True)
    for name in ("tv0", "va", "tk0", "vb"):
        subprocess.run([find("ip"), "link", "set", name, "up"], check=True)
    subprocess.run([find("ip"), "address", "add", f"{HOST_ADDRESS}/24", "dev", "tk0"], check=True)
    # All four belong to one kernel: it is to answer where it has the address, not at the link's ends.
    Path("/proc/sys/net/ipv4/conf/all/arp_ignore").write_text("1")


def marked(congestion, of_kernel):
    def run(w):
        met = flows(of_kernel)
        lay()
        set_kernel(ALL_ON)
        w.up(*VETH, *flags(congestion, ALL_ON, "clean"))
        link = emulate(w, "--both", PATH)
        results = meet(w, met, LIMIT_S - 10)
        prove_options(results, of_kernel, ALL_ON, False)
        traffic = prove_port(w, 2 * BULK, 2 * BULK)
        ways = {"to the kernel": "forward", "to Towpath": "backward"}
        report = finish(link)
        for way, name in ways.items():
            counted = report[name]
            require(counted["marked"] > 0, f"{way} nothing was marked: {counted}")
            require(counted["lost"] == counted["queue_full"] == counted["failed"] == 0, f"{way} packets were lost: {counted}")
        # Of two senders that share a queue one may have all the marks.
        for side, way in enumerate(ways):
            heard = {name: ends[side]["delivered_ce"] for name, ends in results.items() if ends[side]["sent"] > 0}
            require(sum(heard.values()) > 0, f"{way} no sender heard of a mark: {heard}, {results}")
        again = traffic["retransmitted_bytes"] // SEGMENT, sum(ends[1]["retransmits"] for ends in results.values())
        require(max(again) <= PROBES_MAX, f"sent again without a loss: {again[0]} segments by Towpath, {again[1]} by the kernel")
        shares = (100 * report[name]["marked"] / report[name]["offered"] for name in ways.values())
        longest = (report[name]["queue_packets_max"] for name in ways.values())
        return f"marked {'/'.join(f'{s:.1f}' for s in shares)} %, queues up to {'/'.join(map(str, longest))} packets, sent again {again}"

    return run


# Both ends ask for accurate ECN, and agree to it (net.ipv4.tcp_ecn since Linux 6.18).
KERNEL_ACCURATE = "3"


def counted(congestion):
    """Accurate ECN (RFC 9768) with the kernel as peer, both ways: each mark that the path has made is counted by the end that it reached, and
    the other end hears of them."""

    def run(w):
        met = flows("cubic")
        lay()
        set_kernel(ALL_ON)
        try:
            Path("/proc/sys/net/ipv4/tcp_ecn").write_text(KERNEL_ACCURATE)
        except OSError:
            raise Skip(f"this kernel refuses net.ipv4.tcp_ecn={KERNEL_ACCURATE}: it knows no accurate ECN") from None
        w.up(*VETH, *flags(congestion, ALL_ON, "clean"), "--accurate-ecn", "true")
        link = emulate(w, "--both", PATH)
        results = meet(w, met, LIMIT_S - 10)
        prove_options(results, "cubic", ALL_ON, False)
        prove_port(w, 2 * BULK, 2 * BULK)
        report = finish(link)
        told = []
        # `towpath` and `kernel` in this order, as receivers.
        for receiver, name in ((0, "backward"), (1, "forward")):
            marked = report[name]["marked"]
            received = sum(ends[receiver]["received_ce"] or 0 for ends in results.values())
            heard = sum(ends[1 - receiver]["delivered_ce"] for ends in results.values())
            # An end looks before its last segments come.
            require(0 < received <= marked, f"{name}: {marked} marked, {received} counted")
            require(received >= marked * 9 // 10, f"{name}: {marked} marked, but {received} counted: {results}")
            require(heard >= received * 8 // 10, f"{name}: {received} counted, but {heard} heard: {results}")
            told.append(f"{name} {marked} marked, {received} counted, {heard} heard")
        return "; ".join(told)

    return run


for name in ("cubic", "dctcp"):
    add(f"marks.accurate_{name}", counted(name), limit_s=LIMIT_S, own_service=True, namespace=True)
# Not every kernel has DCTCP: it meets Cubic.
for name, of_kernel in {"cubic": "cubic", "reno": "reno", "dctcp": "cubic"}.items():
    add(f"marks.{name}", marked(name, of_kernel), limit_s=LIMIT_S, own_service=True, namespace=True)
