"""What the module promises, checked in one interpreter. Run by python.rs, which says where the module is."""

import json
import os
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest

import towpath_cc as cc

HERE = os.path.dirname(os.path.abspath(__file__))
AIMD = os.path.join(HERE, "..", "examples", "aimd.py")
LINK = "12mbit,20ms,1bdp"
SUMS = """
(def (Report (volatile acked 0) (volatile lost 0)) (interval_us 20000))
(when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (:= Report.lost (+ Report.lost Ack.lost_pkts_sample)) (fallthrough))
(when (> Micros interval_us) (report) (reset))
"""


class Fixed(cc.Algorithm):
    """A window of 30 segments, set anew by a timer; `made` has all flows of all runs."""

    programs = {"sums": SUMS}
    made = []

    def new_flow(self, datapath, info):
        return FixedFlow(datapath, info)


class FixedFlow:
    def __init__(self, datapath, info):
        self.datapath, self.info, self.reports, self.timers, self.is_closed = datapath, info, [], [], False
        datapath.set_program("sums", Cwnd=30 * info.mss)
        datapath.set_timer(500_000)
        Fixed.made.append(self)

    def on_report(self, report):
        self.reports.append(report.values())
        assert report["acked"] == report.acked == self.reports[-1]["acked"]
        assert report.program == "sums"

    def on_timer(self):
        self.timers.append(self.datapath.now_us)
        self.datapath.update(Cwnd=30.9 * self.info.mss, interval_us=20_000)
        self.datapath.set_timer(500_000)

    def close(self):
        self.is_closed = True


class Fails(cc.Algorithm):
    """Its second flow makes a mistake at the third report."""

    programs = {"sums": SUMS}
    flows = 0

    def new_flow(self, datapath, info):
        datapath.set_program("sums", Cwnd=20 * info.mss)
        self.flows += 1
        return FailsFlow(datapath, self.flows == 2)


class FailsFlow:
    def __init__(self, datapath, is_bad):
        self.datapath, self.is_bad, self.reports = datapath, is_bad, 0

    def on_report(self, report):
        self.reports += 1
        if self.is_bad and self.reports == 3:
            self.datapath.update(Cwnd=-1)


class Shares(cc.Aggregate):
    """One window for all flows of a source."""

    name = "shares"
    programs = {"sums": SUMS}
    groups = []

    def aggregate_by(self, info):
        return info.source[0]

    def create(self, key):
        Shares.groups.append(Shared(key))
        return Shares.groups[-1]


class Shared:
    def __init__(self, key):
        self.key, self.members, self.reports = key, {}, 0

    def create_subflow(self, datapath, info, weight):
        assert weight == 1
        datapath.set_program("sums")
        self.members[info.flow] = datapath
        for datapath in self.members.values():
            datapath.update(Cwnd=30 * info.mss / len(self.members))

    def on_report(self, flow, report):
        assert flow in self.members
        self.reports += 1

    def close_subflow(self, flow):
        del self.members[flow]


class Checks(unittest.TestCase):
    def test_handlers_are_called_with_reports_and_timers(self):
        Fixed.made.clear()
        outcome = cc.try_(Fixed, link=LINK, seconds=3)
        self.assertEqual(outcome.failures, [])
        (flow,) = Fixed.made
        self.assertGreater(len(flow.reports), 60)
        self.assertGreater(sum(report["acked"] for report in flow.reports), 2_000_000)
        steps = [after - before for before, after in zip(flow.timers, flow.timers[1:])]
        self.assertEqual(set(steps), {500_000})
        self.assertEqual(flow.info.asked, "")
        self.assertIn("mss 1448", repr(flow.info))
        ((rate,),) = outcome.throughputs
        self.assertGreater(rate, 10e6)

    def test_a_mistake_costs_its_own_flow(self):
        outcome = cc.try_(Fails, link=LINK, seconds=3, flows=3)
        (failure,) = outcome.failures
        for part in ["on_report", "0:", "Traceback", "Cwnd", "checks.py"]:
            self.assertIn(part, failure)
        self.assertIn("Reno", str(outcome))
        self.assertEqual(len(outcome.throughputs[0]), 3)
        self.assertTrue(all(rate > 0 for rate in outcome.throughputs[0]))

    def test_an_aggregate_decides_about_its_flows_together(self):
        Shares.groups.clear()
        outcome = cc.try_(Shares, link=LINK, seconds=3, flows=3)
        self.assertEqual(outcome.failures, [])
        (group,) = Shares.groups
        self.assertEqual(len(group.members), 3)
        self.assertGreater(group.reports, 100)
        self.assertGreater(outcome.jain[0], 0.9)

    def test_what_is_asked_for_wrongly_is_an_exception(self):
        bad = {"sums": "(def)\n(when true (:= Cwnd lost))"}
        wrong = [
            (lambda: cc.try_(object()), TypeError, "towpath_cc.Algorithm"),
            (lambda: cc.try_("no such algorithm"), ValueError, "there is no algorithm"),
            (lambda: cc.try_("cubic", link="48mbit"), ValueError, "RATE,RTT,QUEUE"),
            (lambda: cc.try_("cubic", flows=0), ValueError, "0 flows"),
            (lambda: cc.try_("cubic", seconds=float("nan")), ValueError, "seconds"),
            (lambda: cc.try_(type("Bad", (cc.Algorithm,), {"programs": bad})), ValueError, "2:"),
            (lambda: cc.try_(type("None_", (cc.Algorithm,), {})), TypeError, "programs"),
            (lambda: cc.Env().step(), RuntimeError, "reset"),
        ]
        for call, kind, says in wrong:
            with self.assertRaisesRegex(kind, says):
                call()

    def test_handlers_without_sense_cost_their_flows(self):
        class Nothing(cc.Algorithm):
            programs = {"sums": SUMS}

            def new_flow(self, datapath, info):
                return None

        class Raises(Nothing):
            def new_flow(self, datapath, info):
                datapath.set_program("another")

        for algorithm, says in [(Nothing, "returned None"), (Raises, "no program `another`")]:
            (failure,) = cc.try_(algorithm, link=LINK, seconds=1).failures
            self.assertIn(says, failure)

    def test_a_timer_of_no_time_at_all_does_not_stop_the_trial(self):
        class Eager(cc.Algorithm):
            programs = {"sums": SUMS}

            def new_flow(self, datapath, info):
                self.datapath, self.timers = datapath, 0
                datapath.set_program("sums", Cwnd=20 * info.mss)
                datapath.set_timer(0)
                return self

            def on_report(self, report):
                pass

            def on_timer(self):
                self.timers += 1
                self.datapath.set_timer(0)

        eager = Eager()
        self.assertEqual(cc.try_(eager, link=LINK, seconds=1).failures, [])
        self.assertGreater(eager.timers, 5000)
        self.assertLess(eager.timers, 10_001)

    def test_a_handler_that_sleeps_takes_no_virtual_time(self):
        class SleepsOnce(FixedFlow):
            def on_report(self, report):
                super().on_report(report)
                if len(self.reports) == 5:
                    time.sleep(0.05)

        class Sleeps(Fixed):
            def new_flow(self, datapath, info):
                return SleepsOnce(datapath, info)

        Fixed.made.clear()
        awake, asleep = (cc.try_(algorithm, link=LINK, seconds=1) for algorithm in (Fixed, Sleeps))
        self.assertEqual(asleep.failures, [])
        self.assertEqual(awake.throughputs, asleep.throughputs)
        first, second = Fixed.made
        self.assertEqual(first.reports, second.reports)

    def test_reports_wait_in_the_socket_of_a_handler_that_sleeps(self):
        """A live agent: what finds no room is seen by the datapath (EAGAIN), all else is answered when the handler wakes."""
        wakes, begins = threading.Event(), threading.Event()

        class Sleeps(cc.Algorithm):
            programs = {"sums": SUMS}

            def new_flow(self, datapath, info):
                self.datapath, self.answers = datapath, 0
                datapath.set_program("sums")
                return self

            def on_report(self, report):
                begins.set()
                wakes.wait()
                self.answers += 1
                self.datapath.update(Cwnd=self.answers)

        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datapath:
            ours, theirs = folder + "/agent", folder + "/datapath"
            datapath.bind(theirs)
            datapath.settimeout(30)
            is_over = []

            def serve():
                agent = cc.Agent(Sleeps())
                agent.run(ours, log=lambda line: is_over and agent.stop())

            agent = threading.Thread(target=serve, daemon=True)
            agent.start()
            while not os.path.exists(ours):
                time.sleep(0)
            ready = struct.pack("<HHII", 5, 12, 0, 1)
            datapath.sendto(ready, ours)
            while struct.unpack_from("<H", datapath.recv(4096)) != (2,):
                pass
            # One flow: window, segment size, ports and addresses of no matter; the rest is a name, which may be empty.
            datapath.sendto(struct.pack("<HHI", 0, 96, 9) + struct.pack("<6I", 14480, 1448, 1, 1, 1, 1) + bytes(64), ours)
            said = datapath.recv(4096)
            while struct.unpack_from("<H", said) != (4,):
                said = datapath.recv(4096)
            (number,) = struct.unpack_from("<I", said, 8)
            report = struct.pack("<HHIII", 1, 32, 9, number, 2) + struct.pack("<2Q", 1448, 0)
            datapath.sendto(report, ours)
            self.assertTrue(begins.wait(30))
            datapath.setblocking(False)
            sent = 1
            with self.assertRaises(BlockingIOError):
                while sent < 1_000_000:
                    datapath.sendto(report, ours)
                    sent += 1
            datapath.settimeout(30)
            wakes.set()
            windows = []
            while len(windows) < sent:
                said = datapath.recv(4096)
                if struct.unpack_from("<H", said) == (3,):
                    windows.append(struct.unpack_from("<Q", said, 17)[0])
            self.assertEqual(windows, list(range(1, sent + 1)))
            is_over.append(True)
            datapath.sendto(struct.pack("<HHIII", 1, 16, 9, number, 0), ours)
            agent.join(30)
            self.assertFalse(agent.is_alive())

    def test_an_interrupt_ends_the_trial(self):
        class Stops(cc.Algorithm):
            programs = {"sums": SUMS}

            def new_flow(self, datapath, info):
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            cc.try_(Stops, link=LINK, seconds=1)

    def test_the_example_shares_with_cubic_and_a_seed_is_one_page(self):
        pages = [cc.try_(AIMD, against="cubic", link=LINK, seconds=5, seed=seed) for seed in (1, 1, 2)]
        self.assertEqual(pages[0].html(), pages[1].html())
        self.assertNotEqual(pages[0].json(), pages[2].json())
        own, rival, both = pages[0].throughputs
        self.assertGreater(own[0], 9e6)
        self.assertGreater(min(both), 1e6)
        races = json.loads(pages[0].json())["races"]
        self.assertEqual([race["title"] for race in races], ["aimd alone", "cubic alone", "aimd against cubic"])

    def test_a_trial_and_an_environment_say_how_often_the_receiver_decides(self):
        small, enough = (cc.try_("cubic", link="100mbit,20ms,1bdp", seconds=1, buffer=buffer) for buffer in ("64kib", None))
        self.assertGreater(small.bounded[0], 0.5)
        self.assertLess(enough.bounded[0], 0.2)
        env = cc.Env(link="100mbit,20ms,1bdp", seconds=1, interval_us=20_000, buffer="64kib")
        seen = env.reset()
        while not seen["is_over"]:
            seen = env.step(cwnd=1_000_000)
        self.assertGreater(seen["bounded_us"], 500_000)
        with self.assertRaises(ValueError):
            cc.try_("cubic", buffer="much")

    def test_an_environment_is_steered_step_by_step(self):
        env = cc.Env(link=LINK, seconds=2, interval_us=20_000)

        def episode(cwnd, seed):
            seen, steps = env.reset(seed), []
            while not seen["is_over"]:
                steps.append(seen)
                seen = env.step(cwnd=cwnd)
            return steps

        small, large = episode(5 * 1448, 1), episode(40 * 1448, 1)
        self.assertEqual(small, episode(5 * 1448, 1))
        self.assertGreater(len(small), 50)
        acked = [sum(seen["acked"] for seen in steps) for steps in (small, large)]
        self.assertGreater(acked[1], 2 * acked[0])
        self.assertEqual(small[-1]["cwnd"], 5 * 1448)
        self.assertGreater(large[-1]["rtt_us"], 20_000)

    def test_names_are_told(self):
        self.assertIn("ccp:cubic", cc.names())
        self.assertIn("copa", cc.names())


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=0).result
    print(f"{outcome.testsRun} checks in Python {sys.version.split()[0]}")
    sys.exit(not outcome.wasSuccessful())
