"""end PLAN: one end of several TCP connections at once, on plain sockets.

The plan is a JSON file with a list of flows. An end first opens its listeners, says `ready`, and connects when it reads a line. Then each flow
runs in a thread of its own; at the end it prints one JSON object per flow: what it sent and received, where the bytes were wrong if they were,
and what TCP_INFO said. The bytes of a direction follow from its seed alone, so each end knows what must come.
"""

import json
import random
import socket
import struct
import sys
import threading
import time

# No power of two, so that a stretch of the stream put at a wrong place of a ring differs from what belongs there.
PERIOD = 1_048_573
TCP_INFO_LEN = 280


class Content:
    """The endless stream of a seed."""

    def __init__(self, seed):
        block = random.Random(seed).randbytes(PERIOD)
        self.block = memoryview(block + block)

    def at(self, position, size):
        start = position % PERIOD
        return self.block[start : start + min(size, PERIOD)]


class End:
    """This end of one flow."""

    def __init__(self, plan, sock):
        self.plan = plan
        self.sock = sock
        self.began = time.monotonic()
        self.report = {"name": plan["name"], "sent": 0, "received": 0}
        sock.settimeout(plan["patience_s"])
        # A large send keeps its arguments together; small messages are not to wait for each other.
        if plan.get("no_delay"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self):
        try:
            if self.plan["kind"] == "rpc":
                self.converse()
            else:
                self.transfer()
        except OSError as problem:
            self.report["error"] = f"{type(problem).__name__}: {problem}"
        self.report["seconds"] = time.monotonic() - self.began
        self.sock.close()

    # Streams: either direction may be empty.

    def transfer(self):
        writer = threading.Thread(target=self.write_all)
        writer.start()
        self.read_all()
        writer.join()
        self.look()
        if self.plan["close"] != "close":
            self.expect_end()

    def write_all(self):
        try:
            content, left = Content(self.plan["send_seed"]), self.plan["send_bytes"]
            sizes = random.Random(self.plan["send_seed"])
            until = self.began + self.plan.get("seconds", float("inf"))
            while left and time.monotonic() < until:
                part = content.at(self.report["sent"], min(left, sizes.randint(1, self.plan["write_max"])))
                self.sock.sendall(part)
                self.report["sent"] += len(part)
                left -= len(part)
            if self.plan["close"] == "half":
                # What the peer asks of a connection that is over cannot be answered.
                self.look()
                self.sock.shutdown(socket.SHUT_WR)
        except OSError as problem:
            self.report["error"] = f"sending: {type(problem).__name__}: {problem}"

    def read_all(self):
        content, expected = Content(self.plan["receive_seed"]), self.plan["receive_bytes"]
        buffer = bytearray(self.plan["read_max"])
        while self.report["received"] < expected:
            count = self.sock.recv_into(buffer, min(len(buffer), expected - self.report["received"]))
            if count == 0:
                break
            self.check(content, buffer, count)
            if self.plan.get("read_pause_s"):
                time.sleep(self.plan["read_pause_s"])

    def check(self, content, buffer, count):
        view, at = memoryview(buffer)[:count], 0
        while at < count:
            right = content.at(self.report["received"], count - at)
            if view[at : at + len(right)] != right and "wrong_at" not in self.report:
                wrong = next(i for i, byte in enumerate(right) if byte != view[at + i])
                self.report["wrong_at"] = self.report["received"] + wrong
            self.report["received"] += len(right)
            at += len(right)

    def expect_end(self):
        beyond = self.sock.recv(4096)
        if beyond:
            self.report["error"] = f"{len(beyond)} bytes came after the end"

    # Request and reply, each of its own random length.

    def converse(self):
        request, reply = Content(self.plan["send_seed"]), Content(self.plan["receive_seed"])
        if self.plan["role"] == "listen":
            return self.serve(reply, request)
        took, until = [], self.began + self.plan.get("seconds", float("inf"))
        while len(took) < self.plan["rounds"] and time.monotonic() < until:
            asked = time.monotonic()
            self.say(request)
            self.hear(reply, 1 + len(took) % self.plan["size_max"])
            took.append(time.monotonic() - asked)
        self.look()
        self.sock.shutdown(socket.SHUT_WR)
        self.expect_end()
        took.sort()
        self.report |= {"rounds": len(took), "p50_us": took[len(took) // 2] * 1e6, "p99_us": took[len(took) * 99 // 100] * 1e6}
        self.report["longest_us"] = took[-1] * 1e6

    def say(self, content, round_number=None):
        number = self.report.get("rounds", 0) if round_number is None else round_number
        part = content.at(self.report["sent"], 1 + number % self.plan["size_max"])
        self.sock.sendall(part)
        self.report["sent"] += len(part)
        if round_number is None:
            self.report["rounds"] = number + 1

    def hear(self, content, size):
        """Reads one message; false at the end of the stream."""
        buffer, left = bytearray(size), size
        while left:
            count = self.sock.recv_into(buffer, left)
            if count == 0:
                if left < size or self.plan["role"] != "listen":
                    self.report["error"] = f"the stream ended within message {self.report.get('rounds', 0)}"
                return False
            self.check(content, buffer, count)
            left -= count
        return True

    def serve(self, requests, replies):
        number = 0
        while self.hear(requests, 1 + number % self.plan["size_max"]):
            self.say(replies, number)
            number += 1
        self.report["rounds"] = number
        self.look()

    def look(self):
        """What TCP says of the connection, while there is one."""
        info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_LEN)
        if "options" in self.report or len(info) < 200:
            return
        self.report["options"] = info[5]
        self.report["window_shifts"] = [info[6] & 15, info[6] >> 4]
        self.report["retransmits"] = struct.unpack_from("=I", info, 100)[0]
        self.report["delivered_ce"] = struct.unpack_from("=I", info, 196)[0]
        # Packets received with a mark, as accurate ECN counts them; kernels before 6.18 do not say it.
        self.report["received_ce"] = struct.unpack_from("=I", info, 248)[0] if len(info) >= 252 else None
        name = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        self.report["congestion"] = name.split(b"\0")[0].decode()


def open_socket(plan):
    """A listener, or a socket to connect, with the plan's congestion control: what it accepts inherits it."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(plan["patience_s"])
    if "congestion" in plan:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, plan["congestion"].encode())
    if plan["role"] == "listen":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((plan["host"], plan["port"]))
        sock.listen()
    return sock


def open_end(plan, sock, ends):
    """Connects or accepts, and runs the flow."""
    try:
        if plan["role"] == "listen":
            connection = sock.accept()[0]
            sock.close()
        else:
            sock.connect((plan["host"], plan["port"]))
            connection = sock
        end = End(plan, connection)
    except OSError as problem:
        ends.append({"name": plan["name"], "error": f"{plan['role']}: {type(problem).__name__}: {problem}"})
        return
    end.run()
    ends.append(end.report)


def main():
    with open(sys.argv[1]) as file:
        plans = json.load(file)
    sockets = [open_socket(plan) for plan in plans]
    print("ready", flush=True)
    sys.stdin.readline()
    ends = []
    threads = [threading.Thread(target=open_end, args=(p, s, ends)) for p, s in zip(plans, sockets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for end in ends:
        print(json.dumps(end))


main()
