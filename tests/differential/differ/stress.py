"""Random calls: the same transcript on both sides; and chaos, in which nothing must break."""

import random
import subprocess
import time

STEPS = 400
CHAOS_MS = 2000
LIMIT_S = 90


def run(command, *arguments):
    try:
        done = subprocess.run(
            [*map(str, command), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as late:
        return f"no end within {LIMIT_S} s", (late.stdout or b"").decode(errors="replace").splitlines()
    return "" if done.returncode == 0 else f"exit status {done.returncode}", done.stdout.splitlines()


def first_difference(kernel, ours):
    for number, (a, b) in enumerate(zip(kernel, ours)):
        if a != b:
            return [*kernel[max(0, number - 6) : number], f"kernel:  {a}", f"Towpath: {b}"]
    if len(kernel) != len(ours):
        return [f"{len(kernel)} lines on the kernel, {len(ours)} through Towpath", *ours[-3:]]
    return []


def compare(program, command, seed):
    """Lines that tell of the difference; what the kernel itself does otherwise from time to time is none."""
    for _ in range(2):
        (problem, kernel), (ours_problem, ours) = run([program], "compare", seed, STEPS), run(command, "compare", seed, STEPS)
        lines = [word for word in (problem and f"kernel: {problem}", ours_problem and f"Towpath: {ours_problem}") if word]
        lines += first_difference(kernel, ours)
        if not lines:
            break
    return lines


def run_all(options, program, prefix, report):
    """For as long as asked, seed by seed; a failure names its seed."""
    command = [*prefix, program]
    end = time.monotonic() + options.stress
    seeds, failures, kind = 0, 0, "stress"
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    while failures == 0 and (seeds == 0 or time.monotonic() < end) and not (seeds and options.seed is not None):
        seed = first + seeds
        seeds += 1
        lines = compare(program, command, seed)
        problem, said = run(command, "chaos", seed, CHAOS_MS)
        chaos = [problem, *said[-5:]] if problem else []
        if lines or chaos:
            failures += report(kind, False, f"seed {seed}: --only stress --seed {seed}", [*lines, *chaos])
    if failures == 0:
        report(kind, True, f"{seeds} seeds from {first}: {seeds * STEPS * 4} calls compared, {seeds * CHAOS_MS / 1000:.0f} s of chaos")
    return failures
