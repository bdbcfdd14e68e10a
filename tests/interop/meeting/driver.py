"""Runs registered tests in several workers at once: each test has a namespace of its own, and most of its time it waits."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from lib import process
from lib.runner import run_all

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def parser(description):
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--bin-dir", type=Path, help="where towpath and libtowpath_preload.so lie (default: target/release)")
    options.add_argument("--jobs", type=int, default=4, metavar="N", help="tests at once (default: 4)")
    options.add_argument("--keep", action="store_true", help="keep the directories of failed tests")
    options.add_argument("--capture", type=Path, metavar="DIR", help="write the headers of each test's packets to DIR/WORKER-NUMBER.pcap (tcpdump)")
    return options


def programs_of(options):
    """Completes the options as the tests want them."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    options.bin_dir = (options.bin_dir or target / "release").resolve()
    options.kernel = False
    if options.capture:
        options.capture = options.capture.resolve()
        options.capture.mkdir(parents=True, exist_ok=True)
    for name in ("towpath", "libtowpath_preload.so"):
        if not (options.bin_dir / name).exists():
            sys.exit(f"{options.bin_dir / name} is not there; run cargo build --release, or name --bin-dir")


def start_worker(tests, options, root, counts):
    """Forks; the worker reports what it counted as one line of a file, for a worker that dies reports nothing."""
    root.mkdir(mode=0o755)
    child = os.fork()
    if child:
        return child
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    status = 1
    try:
        process.become_subreaper()
        counted = run_all(tests, options, root)
        counts.write_text(" ".join(str(counted[outcome]) for outcome in ("ok", "not ok", "skipped")))
        status = 0
    finally:
        process.kill_descendants()
        os._exit(status)


def interrupted(number, _):
    raise KeyboardInterrupt(number)


def run(tests, options, what):
    """Runs all; prints the sum; returns the exit status."""
    process.become_subreaper()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, interrupted)
    root = Path(tempfile.mkdtemp(prefix="towpath-interop-"))
    root.chmod(0o755)
    began, failed_workers, workers = time.monotonic(), 0, []
    jobs = max(1, min(options.jobs, len(tests)))
    try:
        for number in range(jobs):
            workers.append(start_worker(tests[number::jobs], options, root / f"worker{number}", root / f"counts{number}"))
        for worker in workers:
            failed_workers += os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) != 0
    except KeyboardInterrupt:
        return 130
    finally:
        process.kill_descendants()
        counts = [tuple(map(int, f.read_text().split())) for f in root.glob("counts*")]
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    ok, failed, skipped = (sum(column) for column in zip((0, 0, 0), *counts))
    print(f"{what}: {ok} passed, {failed} failed, {skipped} skipped in {time.monotonic() - began:.0f} s")
    if failed_workers:
        print(f"{failed_workers} workers died")
    if options.keep and failed:
        print(f"kept: {root}")
    return 1 if failed or failed_workers else 0
