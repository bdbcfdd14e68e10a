"""The matrix: every combination of congestion control and options of the kernel, then every combination of Towpath's own switches; each
clean and with loss. All flows of a cell run at once, Towpath being client of some and server of others."""

import subprocess
from itertools import product
from pathlib import Path

from lib.process import Skip, require
from lib.registry import add
from lib.world import HOST_ADDRESS, SERVICE_ADDRESS, WAYS, find
from meeting.flows import MIB, VETH_INTERFACE, meet, rate, rpc, stream

SYSCTL = Path("/proc/sys/net/ipv4")
OPTIONS = ("sack", "timestamps", "window_scaling", "ecn")
# Bits of tcpi_options in struct tcp_info.
TIMESTAMPS, SACK, WINDOW_SCALING, ECN = 1, 2, 4, 8
BITS = {"sack": SACK, "timestamps": TIMESTAMPS, "window_scaling": WINDOW_SCALING, "ecn": ECN}
KERNEL_CONGESTION = ("cubic", "reno", "bbr")
# What Towpath runs against each; all that it has meet the kernel.
TOWPATH_CONGESTION = {"cubic": "cubic", "reno": "reno", "bbr": "cubic"}
PATHS = {"clean": (), "loss": ("--fault-loss", "1%")}
BULK, ROUNDS = 3 * MIB, 200
LIMIT_S = 40


def set_kernel(switches):
    """The namespace's kernel, for connections from now on."""
    for name, on in switches.items():
        (SYSCTL / f"tcp_{name}").write_text(str(int(on)))


def need_congestion(name):
    """A namespace may lack what the host has, and be forbidden to make it its default; a socket may choose it."""
    known = (SYSCTL / "tcp_available_congestion_control").read_text().split()
    if name not in known:
        raise Skip(f"this kernel has no {name}, only {' '.join(known)}")
    return {"of_kernel": {"congestion": name}}


def flows(congestion):
    more = need_congestion(congestion)
    return [flow | more for flow in all_flows()]


def all_flows():
    return [
        stream("client_sends", "connect", 11, to_kernel=BULK),
        stream("client_receives", "connect", 12, to_towpath=BULK, close=("late", "half")),
        stream("server_sends", "listen", 13, to_kernel=BULK),
        stream("server_receives", "listen", 14, to_towpath=BULK, close=("late", "half")),
        rpc("client_asks", "connect", 15, ROUNDS),
        rpc("server_answers", "listen", 16, ROUNDS),
    ]


def prove_options(results, congestion, agreed, lossy):
    """Both ends negotiated what the combination says, on every connection."""
    for name, (towpath, kernel) in results.items():
        # Who has repeated its SYN without ECN may use none, whatever the answer to the first one makes the other end believe.
        agree_on = sum(BITS.values()) & ~(ECN if lossy else 0)
        both = [end["options"] & agree_on for end in (towpath, kernel)]
        require(both[0] == both[1], f"{name}: tcpi_options are {both[0]:#x} at Towpath, {both[1]:#x} at the kernel")
        shifts = [towpath["window_shifts"], kernel["window_shifts"][::-1]]
        require(shifts[0] == shifts[1], f"{name}: window shifts are {shifts[0]} at Towpath, and as the kernel has them {shifts[1]}")
        require(kernel["congestion"] == congestion, f"{name}: the kernel's congestion control is {kernel['congestion']}")
        for option, bit in BITS.items():
            has = bool(kernel["options"] & bit)
            # "A host that receives no reply to an ECN-setup SYN within the normal SYN retransmission timeout interval MAY resend
            # the SYN ... with CWR and ECE cleared" (RFC 3168 section 6.1.1.1).
            allowed = {agreed[option], agreed[option] and not (lossy and option == "ecn")}
            require(has in allowed, f"{name}: {option} is {'on' if has else 'off'} at the kernel (tcpi_options {kernel['options']:#x})")
        scaled = kernel["window_shifts"] != [0, 0]
        require(scaled == agreed["window_scaling"], f"{name}: window shifts {kernel['window_shifts']}")


# Why honest packets are dropped: the fault injector did; what they carry has come already; its place is not there yet, or not any more; the
# host says it to all its neighbours, not to the service.
HARMLESS = {"injected", "duplicate", "unacceptable", "no_memory", "intervals_full", "foreign_address"}


def prove_port(world, sent, received, damaged=False):
    """The bytes went through Towpath's fast path, and it found nothing wrong with what an honest peer sent, unless the path damages it."""
    traffic = world.stat()["traffic"]
    require(traffic["sent_bytes"] >= sent and traffic["received_bytes"] >= received, f"over the port: {traffic}")
    bad = {} if damaged else {cause: n for cause, n in traffic["dropped"].items() if cause not in HARMLESS}
    require(not bad, f"packets of an honest peer were dropped: {bad}")
    return traffic


def note(results, traffic):
    bulk = {name: rate(None, ends) for name, ends in results.items() if "rounds" not in ends[0]}
    asked = [end for ends in results.values() for end in ends if "p99_us" in end]
    again = sum(ends[1].get("retransmits", 0) for ends in results.values())
    shown = " ".join(f"{value:.0f}" for value in bulk.values())
    p99 = "/".join(f"{end['p99_us'] / 1000:.1f}" for end in asked)
    dropped = ", ".join(f"{n} {cause}" for cause, n in traffic["dropped"].items())
    return f"MiB/s {shown}; dropped {dropped or 0}; RPC p99 {p99} ms; retransmitted {traffic['retransmitted_bytes'] >> 10} KiB, by the kernel {again} segments"


def cell(congestion, kernel, towpath, path):
    def run(w):
        set_kernel(kernel)
        results = meet(w, flows(congestion), LIMIT_S - 10)
        prove_options(results, congestion, {name: kernel[name] and towpath[name] for name in OPTIONS}, path != "clean")
        return note(results, prove_port(w, 2 * BULK, 2 * BULK))

    return run


def flags(congestion, switches, path):
    own = [word for name, on in switches.items() for word in (f"--{name.replace('_', '-')}", str(on).lower())]
    return ("--congestion", congestion, *own, *PATHS[path])


def label(switches):
    short = {"sack": "sack", "timestamps": "ts", "window_scaling": "ws", "ecn": "ecn"}
    return "_".join(f"{'' if on else 'no'}{short[name]}" for name, on in switches.items())


VETH = ("--port", f"packet:{VETH_INTERFACE}", "--address", f"{SERVICE_ADDRESS}/24")


def over_veth(switches, path):
    """The service on one end of a pair of virtual interfaces, through packet sockets; the kernel on the other."""

    def run(w):
        for words in (
            f"link add {VETH_INTERFACE} type veth peer name tv1",
            f"address add {HOST_ADDRESS}/24 dev tv1",
            f"link set {VETH_INTERFACE} up",
            "link set tv1 up",
        ):
            subprocess.run([find("ip"), *words.split()], check=True)
        w.up(*VETH, *flags("cubic", {name: True for name in OPTIONS}, path))
        return cell("cubic", switches, {name: True for name in OPTIONS}, path)(w)

    return run


def add_veth():
    for path, on in product(PATHS, (True, False)):
        switches = {name: on for name in OPTIONS}
        add(f"veth.{label(switches)}.{path}", over_veth(switches, path), limit_s=LIMIT_S, own_service=True, namespace=True)


def add_matrix():
    every = [dict(zip(OPTIONS, values)) for values in product((True, False), repeat=4)]
    all_on = every[0]
    way = WAYS["tap_server"]
    for path in PATHS:
        for congestion, switches in product(KERNEL_CONGESTION, every):
            name = f"kernel_{congestion}.{label(switches)}.{path}"
            add(name, cell(congestion, switches, all_on, path), way, LIMIT_S, up=flags(TOWPATH_CONGESTION[congestion], all_on, path))
        # With everything on, Towpath's own switches decide.
        for switches in every[1:]:
            name = f"towpath.{label(switches)}.{path}"
            add(name, cell("cubic", all_on, switches, path), way, LIMIT_S, up=flags("cubic", switches, path))
        name = f"towpath.dctcp.{path}"
        add(name, cell("cubic", all_on, all_on, path), way, LIMIT_S, up=flags("dctcp", all_on, path))


add_matrix()
add_veth()
