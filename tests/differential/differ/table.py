"""docs/compatibility.md: the table between its marks."""

import platform
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"
BEGIN, END = "<!-- differential:begin -->", "<!-- differential:end -->"


def outcome(c):
    if not c.agrees:
        return "differs: " + "; ".join(f"{d.what} ({d.why}{unless(d)})" for d in c.listed)
    if c.ours.who == "kernel":
        return f"falls back ({c.reason})"
    return "same"


def unless(difference):
    return f"; not with `--profile {difference.vanishes_with}`" if difference.vanishes_with else ""


def rows(comparisons):
    """A row a case and outcome, with the states it holds in."""
    cases = {}
    for c in comparisons:
        cases.setdefault(c.case, {}).setdefault(outcome(c), []).append(c.state)
    for case, outcomes in cases.items():
        total = sum(map(len, outcomes.values()))
        for result, states in outcomes.items():
            if states == ["none"]:
                where = ""
            else:
                where = f"all {total}" if len(states) == total else ", ".join(states)
            yield f"| `{case}` | {where} | {result} |"


def text(comparisons):
    outcomes = [outcome(c).partition(" ")[0] for c in comparisons]
    same, differ, back = (sum(o.startswith(word) for o in outcomes) for word in ("same", "differs", "falls"))
    head = f"{kernel()}: {len(outcomes)} cases: {same} the same, {differ} differ as listed, {back} fall back to the kernel."
    return "\n".join([head, "", "| case | states | result |", "|---|---|---|", *rows(comparisons)])


def kernel():
    return "Linux " + ".".join(platform.release().split(".")[:2])


def is_of_this_kernel():
    """Kernels differ, too: what one says is compared with what the same one said."""
    return split()[1].startswith(f"{kernel()}:")


def split():
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    inner, end, after = rest.partition(END)
    assert begin and end, f"{PAGE} lacks its marks"
    return before, inner.strip(), after


def write(comparisons):
    before, _, after = split()
    PAGE.write_text(f"{before}{BEGIN}\n{text(comparisons)}\n{END}{after}")


def difference(comparisons):
    """The lines of the page that are not what was found, and the other way round."""
    written, found = split()[1].splitlines(), text(comparisons).splitlines()
    return [f"- {line}" for line in written if line not in found] + [f"+ {line}" for line in found if line not in written]
