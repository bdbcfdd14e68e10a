"""`towpath sim`: what it prints and writes, its mistakes, and that a run can be replayed by the command it names."""

import json
import shlex
import struct

from lib.command_line import mistake, refused
from lib.process import require
from lib.world import run_towpath

SECTION, INTERFACE, PACKET = 0x0A0D0D0A, 1, 6


def blocks(data):
    """The blocks of a little-endian pcapng file: type and body. Both lengths of each must agree, and nothing may be left over."""
    at = 0
    while at < len(data):
        require(len(data) - at >= 12, f"{len(data) - at} bytes after the last block")
        kind, length = struct.unpack_from("<II", data, at)
        require(length % 4 == 0 and 12 <= length <= len(data) - at, f"block of {length} bytes at {at}")
        require(struct.unpack_from("<I", data, at + length - 4) == (length,), f"the lengths of the block at {at} differ")
        yield kind, data[at + 8 : at + length - 4]
        at += length


@mistake("sim_list")
def sim_list(w):
    done = run_towpath([w.towpath, "sim", "--list"])
    require(done.returncode == 0, done.stderr)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    require(len(names) == len(set(names)) and len(names) > 15, f"{names}")
    for name in ("random", "random-hostile", "random-smoltcp", "clean", "long-fat", "churn"):
        require(name in names, f"no {name} in {names}")


@mistake("sim_capture")
def sim_capture(w):
    """Every frame where it leaves and where it arrives, in order of time, an interface for each machine."""
    capture = w.directory / "out.pcapng"
    done = run_towpath([w.towpath, "sim", "random", "--seed", "5", "--pcap", capture])
    require(done.returncode == 0 and "random seed 5: passed" in done.stdout, done.stdout + done.stderr)
    seen = list(blocks(capture.read_bytes()))
    require(seen[0][0] == SECTION and seen[0][1][:4] == struct.pack("<I", 0x1A2B3C4D), "no section header")
    links = [body for kind, body in seen if kind == INTERFACE]
    require(len(links) == 2 and all(struct.unpack_from("<H", body) == (1,) for body in links), "not two Ethernet interfaces")
    packets = [struct.unpack_from("<IIIII", body) + (body[20:],) for kind, body in seen if kind == PACKET]
    told = json.loads(run_towpath([w.towpath, "sim", "random", "--seed", "5", "--json"]).stdout)
    require(len(packets) > told["frames"], f"{len(packets)} records of {told['frames']} frames sent")
    times = [high << 32 | low for _, high, low, _, _, _ in packets]
    require(times == sorted(times), "time goes back")
    for interface, _, _, kept, length, data in packets:
        require(interface < 2 and kept == length >= 42 and data[12:14] in (b"\x08\x00", b"\x08\x06", b"\x86\xdd"), "a strange frame")


@mistake("sim_replay")
def sim_replay(w):
    """A line of JSON for each seed; the command in it runs that seed again, byte by byte."""
    done = run_towpath([w.towpath, "sim", "random-hostile", "--seed", "3", "--seeds", "4", "--json"], 60)
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    require(done.returncode == 0 and sorted(run["seed"] for run in runs) == [3, 4, 5, 6], f"{done.stdout} {done.stderr}")
    run = runs[-1]
    program, *arguments = shlex.split(run["replay"])
    require(program == "towpath", run["replay"])
    again = run_towpath([w.towpath, *arguments, "--json"], 60)
    require(json.loads(again.stdout) == run, f"{again.stdout} is not {run}")
    plain = run_towpath([w.towpath, *arguments], 60)
    require(plain.returncode == 0 and f"random-hostile seed {run['seed']}: passed" in plain.stdout, plain.stdout + plain.stderr)
    churn = run_towpath([w.towpath, "sim", "churn", "--connections", "500", "--json"], 60)
    require(json.loads(churn.stdout)["replay"].endswith("churn --seed 1 --connections 500"), churn.stdout)
    explained = run_towpath([w.towpath, *arguments, "--explain"])
    require("Hostile" in explained.stdout and "machine 1" in explained.stdout, explained.stdout)


@mistake("sim_mistakes")
def sim_mistakes(w):
    refused(run_towpath([w.towpath, "sim", "tempest"]), "tempest", "--list")
    for flags in (["--seed", "many"], ["--seeds", "1.5"], ["--jobs", "x"], ["--connections", "all"], ["--warp"]):
        refused(run_towpath([w.towpath, "sim", "random", *flags]), flags[0], lines=8)
    refused(run_towpath([w.towpath, "sim", "random", "--pcap", w.directory]), str(w.directory))
    refused(run_towpath([w.towpath, "sim", "random", "--pcap", w.directory / "absent" / "x.pcapng"]), "absent")
