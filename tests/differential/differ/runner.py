"""Options, both runs, the verdict."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from differ import cases, known, stress, table
from lib import process
from lib.world import World

HERE = Path(__file__).resolve().parent.parent
ACCELERATED_MIN = 0.95


def arguments():
    parser = argparse.ArgumentParser(description="Cases and random calls on the kernel and through Towpath, compared.")
    default = Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent.parent / "target") / "release"
    parser.add_argument("--bin-dir", type=Path, default=default, help="where towpath and libtowpath_preload.so lie")
    parser.add_argument("--only", action="append", default=[], metavar="CASE", help="group, group.case, group.case@state or stress; may be repeated")
    parser.add_argument("--kernel", action="store_true", help="compare the kernel with itself: shows that the cases are right")
    parser.add_argument("--write", action="store_true", help="write the table of docs/compatibility.md")
    parser.add_argument("--stress", type=float, default=20, metavar="SECONDS", help="how long random calls are made (20); 0: not at all")
    parser.add_argument("--seed", type=int, help="random calls from this seed only")
    return parser.parse_args()


def compile_programs(folder):
    """The cases are one program, the random calls another."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-Wno-nonnull", "-Wno-stringop-overflow", "-pthread"]
    stress_sources = [HERE / "c" / name for name in ("stress.c", "chaos.c")]
    sources = sorted(set((HERE / "c").glob("*.c")) - set(stress_sources))
    jobs = [subprocess.Popen([compiler, *flags, "-c", s, "-o", folder / f"{s.stem}.o"]) for s in sources]
    jobs.append(subprocess.Popen([compiler, *flags, *stress_sources, "-o", folder / "stress"]))
    objects = [HERE / "c" / "object" / "deep.c", "-shared", "-fPIC"]
    jobs += [subprocess.Popen([compiler, *flags, *objects, f"-Wl,-z,{how}", "-o", folder / f"deep-{name}.so"]) for name, how in (("now", "now"), ("late", "lazy"))]
    if any([job.wait() for job in jobs]):
        sys.exit("tests/differential/run: c/ does not compile")
    subprocess.run([compiler, "-pthread", "-o", folder / "differ", *(folder / f"{s.stem}.o" for s in sources), "-ldl"], check=True)
    return folder / "differ"


def report(name, is_good, told, lines=()):
    print(f"{'ok' if is_good else 'not ok'} differential.{name} ({told})", flush=True)
    for line in lines:
        print(f"    {line}", flush=True)
    return not is_good


def report_groups(comparisons, unknown):
    """A line a group of cases."""
    failures = 0
    strangers = {c.name: pairs for c, pairs in unknown}
    groups = {}
    for c in comparisons:
        groups.setdefault(c.case.partition(".")[0], []).append(c)
    for group, members in groups.items():
        lines = []
        for c in members:
            for kernel, ours in strangers.get(c.name, ()):
                lines += [f"{c.name}", f"    kernel:  {kernel}", f"    Towpath: {ours}"]
        listed = sum(bool(c.listed) for c in members)
        back = sum(c.agrees and c.ours.who == "kernel" for c in members)
        again = sum(c.agrees and c.tries > 1 for c in members)
        told = f"{len(members)} cases, {listed} differ as listed, {back} fall back"
        failures += report(group, not lines, told + (f", {again} agreed when tried again" if again else ""), lines)
    return failures


def report_profiles(comparisons, entries, program, world):
    """What is listed as vanishing with a profile: the same cases once more, with it."""
    failures = 0
    for profile in sorted({d.vanishes_with for d in entries} - {None}):
        names = [c.name for c in comparisons if any(d.vanishes_with == profile for d in c.listed)]
        if not names:
            continue
        left = [d for d in entries if d.vanishes_with != profile]
        again = cases.compare([program], [*world.prefix("--profile", profile), program], names, lambda c: known.lists(left, c))
        unknown = known.attribute(again, left)
        lines = [f"{c.name}: kernel: {kernel}, Towpath: {ours}" for c, pairs in unknown for kernel, ours in pairs]
        failures += report(f"profile.{profile}", not lines, f"{len(names)} cases that differ without it", lines)
    return failures


def report_whole(options, comparisons, entries, world):
    """What holds only when every case has run."""
    failures = 0
    if options.write and not options.only:
        table.write(comparisons)
    if not options.only and not table.is_of_this_kernel():
        print(f"skipped: differential.table (docs/compatibility.md was not written on {table.kernel()})")
    elif not options.only:
        stale = known.unused(entries, [c.name for c in comparisons])
        lines = [f"{pattern}: {entry.what}" for entry, pattern in stale]
        failures += report("known", not stale, f"{len(entries)} entries, {len(stale)} patterns differ no longer", lines)
        lines = table.difference(comparisons)
        failures += report("table", not lines, "docs/compatibility.md says what was found; --write renews it", lines)
    counts = world.stat()
    ours, back = counts["accelerated"], counts["fallen_back"]
    why = ", ".join(f"{n} {reason}" for reason, n in counts["by_reason"].items())
    is_enough = ours > 0 and ours >= ACCELERATED_MIN * (ours + back)
    failures += report("accelerated", is_enough or bool(options.only), f"{ours} of {ours + back} sockets{'; ' + why if why else ''}")
    return failures


def is_of(case, name):
    """True for a case, or a case in one state, of this name or group."""
    return case == name or case.startswith((f"{name}.", f"{name}@"))


def judge_cases(options, program, world):
    began = time.monotonic()
    command = [*(world.prefix() if world else []), program]
    entries = known.read() if world else []
    names = cases.list_cases([program], options.only)
    ports = [name for name in names if is_of(name, "ports")]
    others = [name for name in names if name not in ports]
    # Ports before all others: after some thousands of connections, all in TIME-WAIT, connectors share ports, on Linux as here.
    comparisons = [c for some in (ports, others) for c in cases.compare([program], command, some, lambda c: known.lists(entries, c))]
    comparisons.sort(key=lambda c: c.name)
    unknown = known.attribute(comparisons, entries)
    if world:
        cases.find_reasons(comparisons, command, world)
    failures = report_groups(comparisons, unknown)
    missing = [name for name in options.only if name != "stress" and not any(is_of(c.name, name) for c in comparisons)]
    if missing:
        failures += report("only", False, f"no case of that name: {', '.join(missing)}")
    if world:
        failures += report_profiles(comparisons, entries, program, world)
        failures += report_whole(options, comparisons, entries, world)
    print(f"    {len(comparisons)} cases in {time.monotonic() - began:.0f} s")
    return failures


def judge(options, folder):
    program = compile_programs(folder)
    if program is None:
        print("skipped: differential (no C compiler: scripts/setup)")
        return 0
    world = None if options.kernel else World(options, folder)
    try:
        if world:
            world.up()
        failures = 0 if options.only == ["stress"] else judge_cases(options, program, world)
        if options.stress > 0 and (not options.only or "stress" in options.only):
            failures += stress.run_all(options, folder / "stress", world.prefix() if world else [], report)
        if world:
            failures += report("service", world.service.running(), "the service is still there")
    finally:
        process.kill_descendants()
    return 1 if failures else 0


def main():
    options = arguments()
    options.bin_dir = options.bin_dir.resolve()
    process.become_subreaper()
    if not options.kernel and not (options.bin_dir / "towpath").exists():
        sys.exit(f"tests/differential/run: {options.bin_dir / 'towpath'} is not there; run cargo build --release, or name --bin-dir")
    with tempfile.TemporaryDirectory(prefix="towpath-differential-") as folder:
        return judge(options, Path(folder))
