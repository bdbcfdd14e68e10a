"""Options of both programs, and the run: several tests at once, each in a namespace of its own."""

import argparse
import os
import sys
from pathlib import Path

from lib.runner import default_jobs, run_and_sum, run_folder

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def parser(description):
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--bin-dir", type=Path, help="where towpath and libtowpath_preload.so lie (default: target/release)")
    options.add_argument("--jobs", type=int, default=default_jobs(), metavar="N", help="tests at once (default: two for each processor, at most 8)")
    options.add_argument("--keep", action="store_true", help="keep the directories of failed tests")
    options.add_argument("--capture", type=Path, metavar="DIR", help="write the headers of each test's packets to DIR/NUMBER.pcap (tcpdump)")
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


def run(tests, options, what):
    """Runs all; prints the sum; returns the exit status."""
    with run_folder("interop", options.keep) as root:
        return run_and_sum(tests, options, root, what)
