"""Runs the cases and says which differ."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

LIMIT_S = 300
# The service has heard by then of what a program that has ended had to say.
REASON_S = 1
# A difference that nobody has listed must show as often as this: a machine with much to do is late now and then, on either side.
TRIES = 3
# In so many parts the cases run at once.
PARTS = 6


@dataclass
class Result:
    """What one case printed in one state."""

    lines: tuple = ()
    who: str = "none"


def parse(text):
    results = {}
    for line in text.splitlines():
        head, colon, rest = line.partition(": ")
        name, mark, who = head.partition("#")
        if mark:
            results.setdefault(name, Result()).who = who.strip()
        elif colon:
            result = results.setdefault(name, Result())
            result.lines += (rest,)
    return results


def run(command, names):
    done = subprocess.run(
        [*command, *names], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LIMIT_S, check=False, text=True, errors="replace"
    )
    if done.returncode != 0:
        raise RuntimeError(f"the cases ended with {done.returncode}")
    return parse(done.stdout)


@dataclass
class Comparison:
    """A case in one state: what both sides printed, whether they agreed."""

    name: str
    kernel: Result
    ours: Result
    agrees: bool
    tries: int = 1
    reason: str = ""
    listed: list = field(default_factory=list)

    @property
    def case(self):
        return self.name.partition("@")[0]

    @property
    def state(self):
        return self.name.partition("@")[2]

    def differing(self):
        """Pairs of lines (the kernel's, ours) that are not the same."""
        theirs, ours = self.kernel.lines, self.ours.lines
        longest = max(len(theirs), len(ours))
        padded = [list(lines) + ["(nothing)"] * (longest - len(lines)) for lines in (theirs, ours)]
        return [(a, b) for a, b in zip(*padded) if a != b]


def list_cases(command, names):
    """The cases, each in each of its states, that the names stand for; of no name all."""
    done = subprocess.run([*command, "--list", *names], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout.split()


def run_both(on_kernel, through_us, names, parts):
    """Runs the cases both ways at the same time, in so many parts: most of its time a case waits."""
    chosen = [part for i in range(parts) if (part := names[i::parts])]
    with ThreadPoolExecutor(2 * parts) as pool:
        kernel, ours = ([pool.submit(run, command, part) for part in chosen] for command in (on_kernel, through_us))
        return [{name: result for part in side for name, result in part.result().items()} for side in (kernel, ours)]


def compare(on_kernel, through_us, names, is_listed=lambda comparison: False):
    """Runs both ways; what differs, and is not listed, once more, with nothing beside it."""
    seen = {}
    found = {}
    todo = names
    for attempt in range(1, TRIES + 1):
        kernel, ours = run_both(on_kernel, through_us, todo, PARTS if attempt == 1 else 1)
        for name in kernel.keys() | ours.keys():
            theirs, mine = kernel.get(name, Result()), ours.get(name, Result())
            # What the kernel says differently from time to time, we may say, too.
            seen.setdefault(name, set()).add(theirs.lines)
            found[name] = Comparison(name, theirs, mine, mine.lines in seen[name], attempt)
        todo = sorted(name for name, c in found.items() if not (c.agrees or is_listed(c)))
        if not todo:
            break
        if attempt == 1:
            # What the kernel says because much runs beside it excuses nothing that we say alone.
            seen.clear()
    return sorted(found.values(), key=lambda c: c.name)


def find_reasons(comparisons, command, world):
    """Why cases fell back: each once more, between two looks at the service's counts."""
    for c in comparisons:
        if c.ours.who == "kernel":
            before = world.stat()["by_reason"]
            run(command, [c.name])
            c.reason = ", ".join(new_reasons(before, world)) or "no reason given"


def new_reasons(before, world):
    """The reasons that are counted more often than before. The service may hear of them after the end of the program."""
    end = time.monotonic() + REASON_S
    while True:
        after = world.stat()["by_reason"]
        new = sorted(r for r, n in after.items() if n > before.get(r, 0))
        if new or time.monotonic() > end:
            return new
        time.sleep(0.01)
