"""Options, order, time limits and the sum. Workers take the tests one by one; each test runs in a forked process, below which
everything is killed after it."""

import argparse
import contextlib
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from lib import process, registry
from lib.world import HERE, World

ROOT = HERE.parent.parent
# The first ones last longest: beside the others they end before them.
MODULES = ("transfers", "programs", "web", "postgres", "languages", "copying", "handing", "sharing", "corners", "crowds", "deaths", "hostility", "accepting", "bad_packets", "links", "beside", "claims", "contained", "libraries", "obeyed", "command_line", "starting", "honesty", "profiles", "simulator")
SKIPPED, FAILED = 77, 1
JOBS_MAX = 8
# What workers read and write at once: the number of a test, or its outcome.
RECORD = 8


def default_jobs():
    """Half of its time a test waits."""
    return min(2 * (os.cpu_count() or 1), JOBS_MAX)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", action="store_true", help="run on plain kernel sockets: shows that the tests are right")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="run tests whose name contains NAME; may be repeated")
    parser.add_argument("--jobs", type=int, default=default_jobs(), metavar="N", help=f"tests at a time (default: two for each processor, at most {JOBS_MAX})")
    parser.add_argument("--timed", action="store_true", help="also the tests that measure time, for a machine that does nothing else")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--bin-dir", type=Path, help="where towpath and libtowpath_preload.so lie (default: target/release)")
    parser.add_argument("--keep", action="store_true", help="keep the directories of failed tests")
    options = parser.parse_args()
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    options.bin_dir = (options.bin_dir or target / "release").resolve()
    return options


def chosen(options):
    for module in MODULES:
        importlib.import_module(f"lib.{module}")
    tests = [t for t in registry.TESTS if (t.kernel or not options.kernel) and (options.timed or not t.timed)]
    if options.only:
        tests = [t for t in tests if any(part in t.name for part in options.only)]
    return tests


def build_programs(directory):
    """Compiles tests/apps/c, all at once."""
    sources = sorted((HERE / "c").glob("*.c"))
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("tests/apps/run: no C compiler; run scripts/setup")
    jobs = [
        subprocess.Popen([compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", directory / s.stem, s])
        for s in sources
    ]
    if any([job.wait() for job in jobs]):
        sys.exit("tests/apps/run: tests/apps/c does not compile")


def describe(problem):
    """The message of a Failure; where it happened for anything else."""
    if isinstance(problem, process.Failure):
        frames = [f for f in traceback.extract_tb(problem.__traceback__) if f.filename.startswith(str(HERE.parent))]
        place = next((f for f in reversed(frames) if Path(f.filename).stem not in ("process", "world")), frames[-1])
        return "\n".join([f"{Path(place.filename).name}:{place.lineno}: {problem}", *getattr(problem, "__notes__", ())])
    return "".join(traceback.format_exception(problem)).rstrip()


def run_body(test, options, directory, report):
    """Runs in the forked child; the exit status tells the outcome, the report says why."""
    process.become_subreaper()
    world = World(options, directory, test.way)
    try:
        if test.namespace:
            process.own_network()
            if options.kernel:
                # Both ends are the kernel's, at the addresses that host and service have otherwise.
                for address in ("10.77.0.1/24", "10.77.0.2/24", "fd00:77::1/64", "fd00:77::2/64"):
                    subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)
        if not test.own_service:
            world.up(*test.up)
        note = test.function(world)
        if not test.own_service:
            world.prove_clean()
        report.write_text(note or "")
        return 0
    except process.Skip as reason:
        report.write_text(str(reason))
        return SKIPPED
    except BaseException as problem:  # noqa: B902: also what a signal handler raises
        report.write_text("\n".join([describe(problem), *world.transcript()]))
        return FAILED
    finally:
        process.kill_descendants()


def give_up(limit_s):
    raise process.Failure(f"no end within {limit_s} s")


def wait_limited(child, limit_s):
    """Waits for a test's process; past the limit it may say where it hangs, then it is killed."""
    began = time.monotonic()
    asked = False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        late = time.monotonic() - began - limit_s
        if late > 0 and not asked:
            asked = True
            os.kill(child, signal.SIGTERM)
        if late > 5:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def run_one(test, options, directory):
    """Returns (outcome, text): outcome is `ok`, `not ok` or `skipped`."""
    if test.namespace and os.geteuid() != 0:
        return "skipped", "needs root"
    report = directory / ".report"
    report.write_text("")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: give_up(test.limit_s))
        status = FAILED
        try:
            status = run_body(test, options, directory, report)
        finally:
            os._exit(status)
    code = wait_limited(child, test.limit_s)
    process.kill_descendants()
    return {0: "ok", SKIPPED: "skipped"}.get(code, "not ok"), report.read_text(errors="replace")


def processor_s():
    """What the processes below this one that have ended and were waited for have used of the processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(outcome, test, seconds, busy_s, text):
    """Prints a test's outcome in one write: several workers print to one place."""
    lines = text.splitlines()
    if outcome == "skipped":
        shown = [f"skipped: {test.name} ({lines[0] if lines else 'no reason'})"]
    else:
        note = f"; {lines[0]}" if outcome == "ok" and lines else ""
        shown = [f"{outcome} {test.name} ({seconds:.1f} s, {busy_s:.1f} s of processors{note})"]
        if outcome == "not ok":
            shown += [f"    {line}" for line in lines]
    sys.stdout.write("".join(f"{line}\n" for line in shown))
    sys.stdout.flush()


def work(tests, options, root, numbers, results):
    """A worker's life: takes the numbers of tests until none is left, tells each outcome."""
    process.become_subreaper()
    if os.geteuid() == 0:
        # What one worker's tests listen at is not in the way of another's; where that is not allowed, their ports are chosen at random.
        with contextlib.suppress(process.Skip):
            process.own_network()
    while number := os.read(numbers, RECORD):
        test = tests[int(number)]
        directory = root / number.decode().strip()
        directory.mkdir()
        began, busy_before_s = time.monotonic(), processor_s()
        outcome, text = run_one(test, options, directory)
        show(outcome, test, time.monotonic() - began, processor_s() - busy_before_s, text)
        os.write(results, outcome.ljust(RECORD).encode())
        if not (options.keep and outcome == "not ok"):
            shutil.rmtree(directory, ignore_errors=True)


def start_worker(*arguments):
    """Forks a worker: all that its tests leave behind is below it, and ended with each test."""
    sys.stdout.flush()
    if os.fork():
        return
    status = FAILED
    try:
        work(*arguments)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        process.kill_descendants()
        os._exit(status)


def run_all(tests, options, root):
    """First what may run beside other tests, on several workers; then the rest, one by one."""
    counts = {"ok": 0, "not ok": 0, "skipped": 0}
    for alone, jobs in ((False, options.jobs), (True, 1)):
        chosen_now = [number for number, test in enumerate(tests) if test.alone == alone]
        if chosen_now:
            run_some(tests, chosen_now, jobs, options, root, counts)
    return counts


def run_some(tests, chosen_now, jobs, options, root, counts):
    """Runs the tests with these numbers, so many at a time."""
    before = sum(counts.values())
    numbers, to_workers = os.pipe()
    for number in chosen_now:
        os.write(to_workers, str(number).ljust(RECORD).encode())
    os.close(to_workers)
    from_workers, results = os.pipe()
    for _ in range(min(jobs, len(chosen_now))):
        start_worker(tests, options, root, numbers, results)
    os.close(numbers)
    os.close(results)
    with open(from_workers, "rb") as told:
        while outcome := told.read(RECORD):
            counts[outcome.decode().strip()] += 1
    lost = before + len(chosen_now) - sum(counts.values())
    if lost:
        print(f"not ok workers ({lost} tests did not run)", flush=True)
    counts["not ok"] += lost


@contextlib.contextmanager
def run_folder(name, keep=False):
    """The folder of a whole run. After the run it is removed, unless `keep`, and no process that the run has started is left."""
    process.become_subreaper()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    root = Path(tempfile.mkdtemp(prefix=f"towpath-{name}-"))
    try:
        root.chmod(0o755)
        # Each peer is a new process: what the first one compiles serves all others.
        os.environ["PYTHONPYCACHEPREFIX"] = str(root / "compiled")
        yield root
    finally:
        process.kill_descendants()
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


def run_and_sum(tests, options, root, what):
    """Runs all, prints the sum, returns the exit status."""
    began = time.monotonic()
    counts = run_all(tests, options, root)
    print(f"{what}: {counts['ok']} passed, {counts['not ok']} failed, {counts['skipped']} skipped in {time.monotonic() - began:.0f} s")
    if options.keep and counts["not ok"]:
        print(f"kept: {root}")
    return 1 if counts["not ok"] else 0


def main():
    options = parse_options()
    tests = chosen(options)
    if options.list:
        print("\n".join(t.name for t in tests))
        return 0
    if not tests:
        sys.exit(f"tests/apps/run: no test's name contains {' or '.join(options.only)}")
    if not options.kernel:
        for name in ("towpath", "libtowpath_preload.so"):
            if not (options.bin_dir / name).exists():
                sys.exit(f"tests/apps/run: {options.bin_dir / name} is not there; run cargo build --release, or name --bin-dir")
    with run_folder("apps", options.keep) as root:
        options.programs = root / "c"
        options.programs.mkdir()
        build_programs(options.programs)
        return run_and_sum(tests, options, root, f"applications {'on the kernel' if options.kernel else 'through Towpath'}")
