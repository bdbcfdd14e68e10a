"""The list of tests. A test is a function of a World; its name says what must be true."""

from dataclasses import dataclass

from lib.world import PAIR, Way


# Of a test that says nothing else.
LIMIT_S = 120


@dataclass
class Test:
    name: str
    function: object
    way: Way
    limit_s: int
    # Runs on plain kernel sockets too.
    kernel: bool = True
    # Starts the service itself.
    own_service: bool = False
    # Wants a network namespace of its own, and so root. A TAP device always does.
    namespace: bool = False
    # Counts what a busy machine changes: runs when no other test does.
    alone: bool = False
    # Measures time, which a busy machine changes: runs alone, and with --timed only.
    timed: bool = False
    # Flags of `towpath up` beside the way's own.
    up: tuple = ()

    def __post_init__(self):
        self.namespace = self.namespace or self.way.tap
        self.alone = self.alone or self.timed


TESTS = []


def add(name, function, way=PAIR, limit_s=LIMIT_S, **properties):
    """Adds a test to the list."""
    TESTS.append(Test(name, function, way, limit_s, **properties))


def test(name, **properties):
    """Adds the decorated function to the list."""

    def decorate(function):
        add(name, function, **properties)
        return function

    return decorate
