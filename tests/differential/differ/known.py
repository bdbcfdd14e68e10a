"""The differences that are known, each with its reason."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "known.toml"


class Difference:
    """An entry: patterns of cases in states, what of their lines may differ, what it is and why, the profile without it."""

    def __init__(self, entry):
        self.cases, self.lines = entry["cases"], entry.get("lines", [])
        self.what, self.why, self.vanishes_with = entry["what"], entry["why"], entry.get("vanishes_with")
        self.used = set()

    def covers(self, name, pair):
        return any(self.patterns_of(name)) and (self.falls_in(pair) if self.lines else True)

    def patterns_of(self, name):
        return [pattern for pattern in self.cases if fnmatchcase(name, pattern)]

    def falls_in(self, pair):
        return any(part in line for part in self.lines for line in pair)


def read():
    with FILE.open("rb") as file:
        return [Difference(entry) for entry in tomllib.load(file).get("difference", [])]


def lists(known, comparison):
    """Whether every line that differs is listed."""
    return all(any(d.covers(comparison.name, pair) for d in known) for pair in comparison.differing())


def attribute(comparisons, known):
    """Gives each difference the entries that list it; returns the comparisons with lines that none does."""
    unknown = []
    for c in comparisons:
        if c.agrees:
            continue
        strangers = []
        for pair in c.differing():
            entry = next((d for d in known if d.covers(c.name, pair)), None)
            if entry is None:
                strangers.append(pair)
                continue
            entry.used.update(entry.patterns_of(c.name))
            if entry not in c.listed:
                c.listed.append(entry)
        if strangers:
            unknown.append((c, strangers))
    return unknown


def unused(known, names):
    """Patterns of cases that ran, and did not differ."""
    ran = lambda pattern: any(fnmatchcase(name, pattern) for name in names)  # noqa: E731
    return [(d, pattern) for d in known for pattern in d.cases if pattern not in d.used and ran(pattern)]
