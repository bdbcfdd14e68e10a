"""The list of tests. A test is a function of a World; its name says what must be true."""

from dataclasses import dataclass

from lib.world import PAIR, Way


@dataclass
class Test:
    name: str
    function: object
    way: Way
    limit_s: int
    # Runs on plain kernel sockets too.
    kernel: bool
    # Starts the service itself.
    own_service: bool
    # Wants a network namespace of its own, and so root.
    namespace: bool
    # Counts what a busy machine changes: runs when no other test does.
    alone: bool
    # Measures time, which a busy machine changes: runs with --timed only.
    timed: bool
    # Flags of `towpath up` beside the way's own.
    up: tuple


TESTS = []


def add(name, function, way=PAIR, limit_s=30, kernel=True, own_service=False, namespace=False, alone=False, timed=False, up=()):
    TESTS.append(Test(name, function, way, limit_s, kernel, own_service, namespace or way.tap, alone or timed, timed, up))


def test(name, **properties):
    """Adds the decorated function to the list."""

    def decorate(function):
        add(name, function, **properties)
        return function

    return decorate
