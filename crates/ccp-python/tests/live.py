"""An agent at its socket, with this file as the datapath: several algorithms, notes, the list of flows, groups, and handlers that do nonsense."""

import socket
import struct
import sys
import tempfile
import threading
import time
import unittest

import towpath_cc as cc

SUMS = """
(def (Report (volatile acked 0)) (share 1))
(when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (fallthrough))
(when (> Micros 10000) (report) (reset))
"""
PATIENCE_S = 60
MSS = 1448
# Messages (crate ccp-wire).
CREATE, MEASURE, INSTALL, UPDATE, CHANGE, READY = range(6)


class Live:
    """An agent in a thread of its own, and a datapath's socket. `lines` and `flows` are what its log has told so far."""

    def __init__(self, *algorithms):
        self.algorithms, self.lines, self.flows, self.is_over = algorithms, [], [], False
        self.told = threading.Condition()

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = self.folder.name + "/agent"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.folder.name + "/datapath")
        self.socket.settimeout(PATIENCE_S)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        end = time.monotonic() + PATIENCE_S
        while not self.is_bound():
            assert self.thread.is_alive() and time.monotonic() < end, "the agent binds its socket"
            time.sleep(0.001)
        self.send(struct.pack("<HHII", READY, 12, 0, 1))
        return self

    def __exit__(self, *_):
        self.is_over = True
        # No message: an event, so the log is asked.
        self.send(b"x")
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the agent ends when it is asked to"
        self.socket.close()
        self.folder.cleanup()

    def is_bound(self):
        try:
            self.socket.sendto(b"", self.path)
            return True
        except OSError:
            return False

    def serve(self):
        agent = cc.Agent(*self.algorithms)

        def log(line):
            with self.told:
                self.lines.append(line)
                self.flows = agent.flows()
                self.told.notify_all()
            if self.is_over:
                agent.stop()

        agent.run(self.path, log=log)

    def send(self, message):
        self.socket.sendto(message, self.path)

    def create(self, number, name=b"", port=1):
        """A flow of 10 segments begins."""
        body = struct.pack("<6I", 10 * MSS, MSS, 0x0100007F, port, 0x0200007F, 80) + name.ljust(64, b"\0")
        self.send(struct.pack("<HHI", CREATE, 8 + len(body), number) + body)

    def report(self, number, *values):
        """A report of the program that the flow has; without values the flow is over."""
        body = struct.pack("<II", getattr(self, "program", 0), len(values)) + struct.pack("<%dQ" % len(values), *values)
        self.send(struct.pack("<HHI", MEASURE, 8 + len(body), number) + body)

    def hear(self, kind, number):
        """The next message of this kind to this flow: what follows the flow's number. Others are passed by."""
        while True:
            said, at = self.socket.recv(65536), 0
            while at < len(said):
                found, length, flow = struct.unpack_from("<HHI", said, at)
                if (found, flow) == (kind, number):
                    return said[at + 8 : at + length]
                at += length

    def begin(self, number, name=b"", port=1):
        """Creates a flow; it has its program when this returns."""
        self.create(number, name, port)
        (self.program,) = struct.unpack_from("<I", self.hear(CHANGE, number))

    def line(self, *parts):
        """Waits for a line of the log with all these parts."""
        with self.told:
            found = lambda: next((line for line in self.lines if all(part in line for part in parts)), None)
            assert self.told.wait_for(found, PATIENCE_S), "no line with %r in\n%s" % (parts, "\n".join(self.lines))
            return found()

    def view(self, flow):
        """What the agent's list said of the flow at the last line of its log; None: nothing."""
        with self.told:
            return next((view for view in self.flows if view["flow"] == flow), None)


class First(cc.Algorithm):
    programs = {"sums": SUMS}

    def new_flow(self, datapath, info):
        datapath.set_program("sums", Cwnd=20 * info.mss)
        self.datapath = datapath
        return self

    def on_report(self, report):
        self.datapath.update(Cwnd=report.acked)


class Second(First):
    name = "other"

    def on_report(self, report):
        self.datapath.note("cut", half=report.acked / 2, most=2**64 - 1)
        self.datapath.note("two words")


class Group(cc.Aggregate):
    """Windows by weight: the weight is the flow's port."""

    programs = {"sums": SUMS}

    def aggregate_by(self, info):
        return info.destination

    def create(self, key):
        return Members(key)

    def weight(self, info):
        return info.source[1]


class Members:
    def __init__(self, key):
        self.key, self.flows = key, {}

    def create_subflow(self, datapath, info, weight):
        datapath.set_program("sums")
        datapath.set_timer(1000)
        self.flows[info.flow] = datapath, weight
        total = sum(weight for _, weight in self.flows.values())
        for other, its in self.flows.values():
            other.update(Cwnd=60 * MSS * its / total)

    def on_report(self, flow, report):
        self.flows[flow][0].note("heard", acked=report.acked)

    def on_timer(self, flow):
        datapath, weight = self.flows[flow]
        datapath.note("due", weight=weight, members=len(self.flows))

    def close_subflow(self, flow):
        del self.flows[flow]
        for datapath, weight in self.flows.values():
            datapath.note("left", weight=weight)


def raises(why):
    try:
        raise why
    finally:
        # The exception has this frame in its traceback: a circle, which would keep the agent until another thread finds it.
        del why


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no text")


SURROGATE = "\udcff"
"""Text that is not UTF-8: what Python makes of a byte that it cannot decode."""
REPORTED = [
    # What the handler does, and a part of what is shown.
    (lambda it, _: it.update(Cwnd=float("nan")), "ValueError", "nan"),
    (lambda it, _: it.update(Cwnd=float("inf")), "ValueError", "inf"),
    (lambda it, _: it.update(Cwnd=float("-inf")), "ValueError", "-inf"),
    (lambda it, _: it.update(Cwnd=-1), "ValueError", "0 to 2^64 - 1, not -1"),
    (lambda it, _: it.update(Cwnd=-0.5), "ValueError", "-0.5"),
    (lambda it, _: it.update(Cwnd=2**64), "ValueError", "18446744073709551616"),
    (lambda it, _: it.update(Cwnd=10**400), "TypeError", "Cwnd"),
    (lambda it, _: it.update(Cwnd=1e300), "ValueError", "1e+300"),
    (lambda it, _: it.update(Rate=-1), "ValueError", "Rate"),
    (lambda it, _: it.update(Cwnd="20000"), "TypeError", "Cwnd"),
    (lambda it, _: it.update(Cwnd=b"\xff"), "TypeError", "Cwnd"),
    (lambda it, _: it.update(Cwnd=SURROGATE), "TypeError", "Cwnd"),
    (lambda it, _: it.update(Cwnd=None), "TypeError", "not None"),
    (lambda it, _: it.update(Cwnd=[1]), "TypeError", "Cwnd"),
    (lambda it, _: it.update(Cwnd=1j), "TypeError", "Cwnd"),
    (lambda it, _: it.update(share=-1), "ValueError", "share"),
    (lambda it, _: it.update(nothing=1), "ValueError", "no variable `nothing`"),
    (lambda it, _: it.update(acked=1), "ValueError", "`acked`"),
    (lambda it, _: it.update(**{SURROGATE: 1}), "UnicodeEncodeError", "surrogates"),
    (lambda it, _: it.update(1), "TypeError", "update"),
    (lambda it, _: it.set_program("another"), "ValueError", "no program `another`"),
    (lambda it, _: it.set_program(None), "TypeError", "name"),
    (lambda it, _: it.set_program(b"sums"), "TypeError", "name"),
    (lambda it, _: it.set_program(SURROGATE), "UnicodeEncodeError", "surrogates"),
    (lambda it, _: it.set_program("sums", Cwnd=None), "TypeError", "Cwnd"),
    (lambda it, _: it.set_timer(-1), "OverflowError", "set_timer"),
    (lambda it, _: it.set_timer(2**64), "OverflowError", "set_timer"),
    (lambda it, _: it.set_timer(float("nan")), "TypeError", "after_us"),
    (lambda it, _: it.set_timer(None), "TypeError", "after_us"),
    (lambda it, _: it.note(None), "TypeError", "text"),
    (lambda it, _: it.note(SURROGATE), "UnicodeEncodeError", "surrogates"),
    (lambda it, _: it.note("x", value=float("nan")), "ValueError", "value"),
    (lambda it, _: it.nothing, "AttributeError", "nothing"),
    (lambda _, report: report.nothing, "AttributeError", "does not report `nothing`"),
    (lambda _, report: report["nothing"], "KeyError", "does not report `nothing`"),
    (lambda _, report: report[0], "TypeError", "int"),
    (lambda _, report: report[SURROGATE], "UnicodeEncodeError", "surrogates"),
    (lambda _, report: 1 / 0, "ZeroDivisionError", "division by zero"),
    (lambda *_: raises(ValueError(SURROGATE)), "ValueError", "handler=on_report"),
    (lambda *_: raises(Unspeakable()), "Unspeakable", "handler=on_report"),
    (lambda *_: raises(RecursionError("deep")), "RecursionError", "deep"),
]
MADE = [
    # What `new_flow` returns, and a part of what is shown.
    (lambda: None, "new_flow returned None"),
    (lambda: raises(ValueError("no room")), "ValueError: no room"),
    (lambda: 5, "'int' object has no attribute 'on_report'"),
    (lambda: SURROGATE, "'str' object has no attribute 'on_report'"),
    (lambda: float("nan"), "'float' object has no attribute 'on_report'"),
]
SENSIBLE = [(2**64 - 1, 2**64 - 1), (1.9, 1), (True, 1), (0, 0)]


class Nonsense(cc.Algorithm):
    """Each flow does what its port names."""

    programs = {"sums": SUMS}

    def new_flow(self, datapath, info):
        datapath.set_program("sums")
        made = info.source[1] - 1000
        return MADE[made][0]() if 0 <= made < len(MADE) else Does(datapath, info.source[1])


class Does:
    def __init__(self, datapath, which):
        self.datapath, self.which = datapath, which

    def on_report(self, report):
        if self.which < len(REPORTED):
            REPORTED[self.which][0](self.datapath, report)
        else:
            self.datapath.update(Cwnd=SENSIBLE[report.acked][0], share=1)


class Checks(unittest.TestCase):
    def test_one_agent_has_several_algorithms_notes_and_a_list_of_flows(self):
        with Live(First, Second) as live:
            live.begin(9, b"other")
            live.report(9, 2896)
            line = live.line("flow=0:9", "event=note text=cut")
            self.assertTrue(line.endswith("half=1448 most=18446744073709551615"), line)
            self.assertRegex(line, r"^t=\d+\.\d{6} flow=0:9 ")
            live.line("flow=0:9", 'event=note text="two words"')
            live.begin(10)
            live.begin(11, b"none-such")
            live.line("flow=0:9", "event=opened algorithm=other asked=other")
            live.line("flow=0:10", 'event=opened algorithm=first asked=""')
            live.line("flow=0:11", "event=opened algorithm=first asked=none-such")
            live.report(11, 7000)
            live.hear(UPDATE, 11)
            live.report(10)
            live.line("flow=0:10", "event=closed reports=0")
            self.assertIsNone(live.view("0:10"))
            self.assertEqual({flow["flow"] for flow in live.flows}, {"0:9", "0:11"})
            other, first = live.view("0:9"), live.view("0:11")
            names = ["algorithm", "program", "reports", "cwnd", "mss", "has_failed", "destination"]
            said = [[flow[name] for name in names] for flow in (other, first)]
            peer = other["destination"]
            self.assertTrue(peer.endswith(":80"), peer)
            self.assertEqual(said[0], ["other", "sums", 1, 20 * MSS, MSS, False, peer])
            self.assertEqual(said[1], ["first", "sums", 1, 7000, MSS, False, peer])

    def test_two_algorithms_of_one_name_are_refused(self):
        with self.assertRaisesRegex(ValueError, "two are called `first`"):
            cc.Agent(First, First)

    def test_a_group_hears_weights_timers_and_departures(self):
        with Live(Group) as live:
            live.begin(1, port=1)
            live.line("flow=0:1", "text=due weight=1 members=1")
            live.begin(2, port=3)
            windows = [struct.unpack_from("<Q", live.hear(UPDATE, flow), 9)[0] for flow in (1, 2)]
            self.assertEqual(windows, [15 * MSS, 45 * MSS])
            live.line("flow=0:2", "text=due weight=3 members=2")
            live.report(2, 500)
            live.line("flow=0:2", "text=heard acked=500")
            live.report(1)
            live.line("flow=0:2", "text=left weight=3")

    def test_a_weight_that_is_none_is_one_and_shown(self):
        shown = []
        before, sys.unraisablehook = sys.unraisablehook, lambda what: shown.append(type(what.exc_value).__name__)
        weights = [None, "3", -1, 2**40, float("nan"), SURROGATE, 2.5]
        try:

            class Odd(Group):
                def weight(self, info):
                    return weights[info.source[1]]

            with Live(Odd) as live:
                for port in range(len(weights)):
                    live.begin(port, port=port)
                    live.line("flow=0:%d" % port, "text=due weight=1 ")
        finally:
            sys.unraisablehook = before
        self.assertEqual(len(shown), len(weights))
        self.assertLessEqual(set(shown), {"TypeError", "OverflowError"})

    def test_nonsense_is_shown_with_its_flow_which_falls_back_and_the_agent_lives(self):
        rows = [(number, "on_report", parts) for number, (_, *parts) in enumerate(REPORTED)]
        for made, (_, part) in enumerate(MADE):
            handler = "new_flow" if made < 2 else "on_report"
            rows.append((1000 + made, handler, [part]))
        with Live(Nonsense) as live:
            for number, handler, parts in rows:
                live.begin(number, port=number)
                if handler == "on_report":
                    live.report(number, 1448)
                (fallback,) = struct.unpack_from("<I", live.hear(CHANGE, number))
                self.assertNotEqual(fallback, live.program)
                flow = "flow=0:%d " % number
                line = live.line(flow, "event=failed algorithm=nonsense handler=" + handler)
                for part in parts:
                    self.assertIn(part, line, number)
                self.assertTrue(live.view("0:%d" % number)["has_failed"])
                # Its handlers are not called again.
                live.report(number, 1448)
            live.begin(500, port=500)
            for acked, (_, sent) in enumerate(SENSIBLE):
                live.report(500, acked)
                self.assertEqual(struct.unpack_from("<Q", live.hear(UPDATE, 500), 9), (sent,))
            failures = [line for line in live.lines if "event=failed" in line]
            self.assertEqual(len(failures), len(rows))
            self.assertEqual(sum(not flow["has_failed"] for flow in live.flows), 1)


class Virtual(unittest.TestCase):
    def test_a_timer_that_is_cancelled_does_not_come_and_one_that_is_set_again_moves(self):
        class Timers(cc.Algorithm):
            programs = {"sums": SUMS}

            def new_flow(self, datapath, info):
                self.datapath, self.reports, self.timers = datapath, 0, []
                datapath.set_program("sums", Cwnd=20 * info.mss)
                self.began = datapath.now_us
                datapath.set_timer(300_000)
                datapath.set_timer(700_000)
                return self

            def on_report(self, report):
                pass

            def on_timer(self):
                self.timers.append(self.datapath.now_us - self.began)
                # Later than there is time.
                self.datapath.set_timer(2**64 - 1)
                self.datapath.set_timer(100_000)
                self.datapath.cancel_timer()
                self.datapath.cancel_timer()

        timers = Timers()
        self.assertEqual(cc.try_(timers, link="12mbit,20ms,1bdp", seconds=2).failures, [])
        self.assertEqual(timers.timers, [700_000])


class Wrong(unittest.TestCase):
    def test_classes_that_are_no_algorithms_are_refused(self):
        good = {"sums": SUMS}
        for parts, kind in [
            ({"programs": good, "name": 5}, TypeError),
            ({"programs": good, "name": None}, TypeError),
            ({"programs": good, "name": ""}, ValueError),
            ({"programs": good, "name": "x" * 64}, ValueError),
            ({"programs": good, "name": "a\0b"}, ValueError),
            ({"programs": good, "name": SURROGATE}, UnicodeEncodeError),
            ({"programs": {1: SUMS}}, TypeError),
            ({"programs": {"sums": None}}, TypeError),
            ({"programs": {"sums": SUMS.encode()}}, TypeError),
            ({"programs": {"sums": SURROGATE}}, UnicodeEncodeError),
            ({"programs": {"sums": ""}}, ValueError),
            ({"programs": SUMS}, TypeError),
            ({"programs": None}, TypeError),
        ]:
            with self.subTest(parts=parts), self.assertRaises(kind):
                cc.Agent(type("Bad", (cc.Algorithm,), parts))


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=0).result
    print(f"{outcome.testsRun} checks of live agents in Python {sys.version.split()[0]}")
    sys.exit(not outcome.wasSuccessful())
