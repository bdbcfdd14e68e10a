"""Somebody else's test suite through Towpath, both ends accelerated on the loopback address, with one service for all of it.

A part passes when every test passes that passes on kernel sockets on the same machine (a test that fails is tried there). Many
of these tests measure time: one that has failed beside others is tried again when all parts are done, alone, and has to pass each time. The whole proves something only if it tested us: at least 95 % of its TCP sockets must have been accelerated, by the service's count.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from lib import process
from lib.process import Failure
from lib.world import World

ACCELERATED_MIN = 0.95
# How often a test that has failed is tried again.
AGAIN = 3
ROOT = Path(__file__).resolve().parent.parent.parent.parent


@dataclass(frozen=True)
class Suite:
    """How to run it, and how to read what it prints."""

    name: str
    # The parts' names, each with whatever `command` wants to know of it.
    parts: dict
    # (part, its value, the one test or None) -> command line.
    command: Callable
    # What it printed -> how many tests ran, the names of those that failed.
    read: Callable
    limit_s: int
    # Parts that run at a time, the first ones first.
    jobs: int = 1


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()


def parse_options(description, parts=None):
    """`parts` where they are known before anything is built."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", type=Path, default=target() / "release", help="where towpath and libtowpath_preload.so lie")
    parser.add_argument("--only", action="append", choices=parts, help="this part; may be repeated")
    parser.add_argument("--kernel", action="store_true", help="run on kernel sockets: shows that the tests are right")
    options = parser.parse_args()
    options.bin_dir = options.bin_dir.resolve()
    return options


def run_once(suite, world, part, test=None, accelerated=False):
    """What was wrong with how it ended, how many tests ran, the names of those that failed, and what it printed."""
    running = world.start(f"{part}-{len(world.processes)}", suite.command(part, suite.parts[part], test), accelerated=accelerated)
    try:
        status = running.wait(suite.limit_s)
        problem = f"exit status {status}" if status else ""
    except Failure as late:
        # A suite's own processes are in its session.
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        problem = str(late)
    text = running.output() + running.errors()
    ran, failed = suite.read(text)
    return problem, ran, sorted(set(failed)), text


def judge(suite, world, part, first):
    """The tests that fail only through Towpath, what there is to tell, and what was printed in the `first` run. To be called when no other part runs."""
    problem, ran, failed, text, seconds = first
    bad, told = [], []
    for test in failed:
        if test in run_once(suite, world, part, test)[2]:
            told.append(f"{test}: fails on the kernel, too")
        elif not any(test in run_once(suite, world, part, test, accelerated=True)[2] for _ in range(AGAIN)):
            told.append(f"{test}: failed once, and passed {AGAIN} times alone")
        else:
            bad.append(test)
    if problem and not failed or ran == 0:
        bad.append(problem or "no test ran")
    return bad, f"{ran} tests, {seconds:.0f} s" + "".join(f"; {word}" for word in told), text


def first_run(suite, world, part):
    """What `run_once` returns, and how many seconds it took."""
    began = time.monotonic()
    return *run_once(suite, world, part, accelerated=True), time.monotonic() - began


def show(ok, name, told, lines=()):
    print(f"{'ok' if ok else 'not ok'} {name} ({told})", flush=True)
    for line in lines:
        print(f"    {line}", flush=True)
    return ok


def judge_share(suite, world):
    """The sockets were ours."""
    counts = world.stat()
    ours, total = counts["accelerated"], counts["accelerated"] + counts["fallen_back"]
    why = "".join(f"; {n} {reason}" for reason, n in counts["by_reason"].items())
    return show(ours >= ACCELERATED_MIN * total and ours > 0, f"suite.{suite.name}.accelerated", f"{ours} of {total} sockets{why}")


def run(suite, options):
    """Prints a line for each part, as tests/apps/run does; returns the exit status."""
    process.become_subreaper()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    good = True
    with tempfile.TemporaryDirectory(prefix="towpath-suite-") as folder:
        world = World(options, folder)
        try:
            world.up()
            parts = options.only or list(suite.parts)

            def conclude(part, first):
                bad, told, text = judge(suite, world, part, first)
                lines = [f"failed: {name}" for name in bad] + (text.splitlines()[-40:] if bad else [])
                return show(not bad, f"suite.{suite.name}.{part}", told, lines)

            # Each program ends with the thread that started it: the threads stay until all parts are done.
            with ThreadPoolExecutor(suite.jobs) as pool:
                try:
                    late = []
                    for part, first in zip(parts, pool.map(lambda part: first_run(suite, world, part), parts)):
                        if first[2]:
                            # What has failed is tried again when no other part runs.
                            late.append((part, first))
                        else:
                            good &= conclude(part, first)
                    for part, first in late:
                        good &= conclude(part, first)
                except BaseException:
                    # Interrupted: without their programs the threads have nothing to wait for.
                    pool.shutdown(wait=False, cancel_futures=True)
                    process.kill_descendants()
                    raise
            if not options.kernel:
                good &= judge_share(suite, world)
        finally:
            process.kill_descendants()
    return 0 if good else 1
