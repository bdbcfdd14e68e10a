"""Congestion control as Python classes: tried in a simulator, run on live flows.

An algorithm is a class that derives from `Algorithm`: `programs` has texts in the language of docs/congestion.md, `new_flow` returns an object for
each flow. Windows are bytes, rates bytes per second, times microseconds; all numbers are from 0 to 2**64 - 1.

An exception in a handler costs its flow alone: the flow goes to Reno in the datapath, and the log shows the traceback and the flow.
"""

from os import PathLike
from typing import Any, Callable, ClassVar, Dict, Hashable, List, Optional, Protocol, Tuple, Type, TypedDict, Union, final, type_check_only

from typing_extensions import Self

__version__: str
INFINITY: int
"""What a signal without a sample is, for example `Flow.rtt_sample_us`."""

@final
class Datapath:
    """The handle of one flow. Each call is one message to its datapath."""

    @property
    def flow(self) -> str:
        """The flow's name at this agent."""
    @property
    def now_us(self) -> int:
        """The agent's time, microseconds. Only differences have a meaning; in the simulator it is virtual."""
    def set_program(self, name: str, **fields: float) -> None:
        """Gives the flow a program of its algorithm. `fields` (variables, `Cwnd`, `Rate`) are set before its first run."""
    def update(self, **fields: float) -> None:
        """Sets variables, `Cwnd` (bytes) and `Rate` (bytes per second), all between two runs. 0 leaves window and rate as they are."""
    def set_timer(self, after_us: int) -> None:
        """Calls `on_timer` of the flow once after this time, at least 100. A flow has one timer: setting it again moves it."""
    def cancel_timer(self) -> None:
        """Takes the timer away."""
    def note(self, text: str, **values: float) -> None:
        """Writes a line with named values into the agent's log."""

@final
class FlowInfo:
    """What a datapath says of a flow when it begins."""

    flow: str
    """The flow's name at this agent."""
    asked: str
    """The algorithm that the application or a rule asked for; empty: any."""
    cwnd: int
    """The congestion window, bytes."""
    mss: int
    """The largest segment, bytes."""
    source: Tuple[str, int]
    """Address and port of this host."""
    destination: Tuple[str, int]
    """Address and port of the peer."""

@final
class Report:
    """The report variables of a flow's program, as attributes (`report.acked`) or by name (`report["acked"]`)."""

    @property
    def program(self) -> str:
        """The name of the program that has reported."""
    def __getattr__(self, name: str) -> int: ...
    def __getitem__(self, name: str, /) -> int: ...
    def values(self) -> Dict[str, int]:
        """All values by name, in the order of the program's text."""

@type_check_only
class Flow(Protocol):
    """What `new_flow` returns. It may also have `on_timer(self)` and `close(self)`. (For type checkers: the module has no such class.)"""

    def on_report(self, report: Report) -> None:
        """The flow's program has reported."""

class Algorithm:
    """Base class of algorithms. The class itself is given to `try_` and `Agent`: each run makes an object of it."""

    name: ClassVar[str]
    """The name by which flows choose it; without one, the class's name in small letters."""
    programs: ClassVar[Dict[str, str]]
    """All programs that its flows may run: name and text."""
    def __new__(cls, *_arguments: Any, **_named: Any) -> Self: ...
    def new_flow(self, datapath: Datapath, info: FlowInfo) -> Any:
        """A flow has begun: returns its object, a `Flow`. The flow stays on the datapath's default until `datapath.set_program`."""

@type_check_only
class Group(Protocol):
    """What `Aggregate.create` returns. (For type checkers: the module has no such class.)"""

    def create_subflow(self, datapath: Datapath, info: FlowInfo, weight: int) -> None:
        """A flow joins the group."""
    def on_report(self, flow: str, report: Report) -> None:
        """A flow of the group has reported."""
    def on_timer(self, flow: str) -> None:
        """The timer of a flow's datapath is due."""
    def close_subflow(self, flow: str) -> None:
        """A flow has left the group."""

class Aggregate:
    """Base class of algorithms that decide about several flows together (CCP paper, section 6.3)."""

    name: ClassVar[str]
    programs: ClassVar[Dict[str, str]]
    def __new__(cls, *_arguments: Any, **_named: Any) -> Self: ...
    def aggregate_by(self, info: FlowInfo) -> Hashable:
        """The key of the flow's group. Keys with the same `repr` are one group."""
    def create(self, key: Any) -> Group:
        """The first flow of a group has begun; `create_subflow` follows for it, too."""
    def weight(self, info: FlowInfo) -> int:
        """The flow's weight in its group; 1 unless overridden."""

Contestant = Union[str, Type[Algorithm], Type[Aggregate], Algorithm, Aggregate]
"""A name (`names()`), a file (.ccp, .py), a class, or an object. (For type checkers: the module has no such name.)"""

@final
class Outcome:
    """A trial that is over. `str(outcome)` is its table; `against` makes three runs of it: each alone, and both over the same link."""

    @property
    def throughputs(self) -> List[List[float]]:
        """Payload bits per second of each flow, a list for each run."""
    @property
    def bounded(self) -> List[float]:
        """Part of the time in which the receiver's window, and no algorithm, held data back, for each run."""
    @property
    def jain(self) -> List[float]:
        """Jain's index of fairness of each run."""
    @property
    def failures(self) -> List[str]:
        """Each handler that failed, with its flow and traceback."""
    def html(self) -> str:
        """A page with plots. The same trial gives the same page, byte by byte."""
    def json(self) -> str:
        """All numbers, and what was seen of each flow."""

def try_(
    subject: Contestant,
    *,
    against: Optional[Contestant] = None,
    link: str = "48mbit,20ms,1bdp",
    flows: int = 1,
    seconds: float = 30.0,
    seed: int = 1,
    staleness_us: int = 20,
    buffer: Optional[str] = None,
) -> Outcome:
    """Flows of an algorithm over a simulated link: rate, round trip, queue, and then what `towpath link` has (`loss=0.1%`, `ecn=65p`).
    `buffer` is the largest receive window of each flow, such as "4mib"; by default it is twice what line and queue hold."""

def names() -> List[str]:
    """All algorithms that have a name: those built into the datapath, and those of crate ccp-algorithms."""

@type_check_only
class Observation(TypedDict):
    """What an `Env`'s flow has seen since its last report. (For type checkers: the module has no such class.)"""

    now_us: int
    acked: int
    lost: int
    marked: int
    timeout: bool
    rtt_us: int
    rate_in: int
    rate_out: int
    in_flight: int
    cwnd: int
    rate: int
    bounded_us: int
    queue: int
    is_over: bool

@final
class Env:
    """One flow over a simulated link that the caller steers, for learners. `flows` is the number of flows of the rival `against`."""

    def __new__(
        cls,
        *,
        link: str = "48mbit,20ms,1bdp",
        against: Optional[Contestant] = None,
        flows: int = 1,
        interval_us: int = 10_000,
        seconds: float = 30.0,
        seed: int = 1,
        staleness_us: int = 20,
        buffer: Optional[str] = None,
    ) -> Self: ...
    def reset(self, seed: Optional[int] = None) -> Observation:
        """Begins an episode; its first observation."""
    def step(self, cwnd: int = 0, rate: int = 0) -> Observation:
        """Sets window (bytes) and rate (bytes per second; 0 leaves either), and runs until the flow's next report."""

@final
class Agent:
    """Algorithms behind one socket, for live flows. The first one serves flows that ask for none of the others."""

    def __new__(cls, *algorithms: Union[Type[Algorithm], Type[Aggregate], Algorithm, Aggregate]) -> Self: ...
    def run(self, path: Union[str, "PathLike[str]"] = ..., log: Optional[Callable[[str], None]] = None) -> None:
        """Serves datapaths at this UNIX datagram socket (by default /tmp/ccp/portus) until ^C or `stop`. `log` gets each event as a line."""
    def stop(self) -> None:
        """Ends `run`, from its `log`."""
    def flows(self) -> List[Dict[str, Any]]:
        """All live flows, from `log` or after `run`; not from handlers."""
