"""grpc_peer server|client HOST PORT: gRPC without generated code, messages are bytes.

`/peer/Reverse` turns one message round; `/peer/Sums` is a stream each way, a SHA-256 for each message.
"""

import concurrent.futures
import hashlib
import random
import sys

import grpc

CALLS, STREAMS, MESSAGES = 120, 4, 60
role, address = sys.argv[1], f"{sys.argv[2]}:{sys.argv[3]}"


class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        handlers = {
            "/peer/Reverse": grpc.unary_unary_rpc_method_handler(lambda message, _: message[::-1]),
            "/peer/Sums": grpc.stream_stream_rpc_method_handler(lambda messages, _: (hashlib.sha256(m).digest() for m in messages)),
        }
        return handlers.get(details.method)


def serve():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), handlers=(Handlers(),))
    assert server.add_insecure_port(address)
    server.start()
    server.wait_for_termination()


def message(number):
    return random.Random(number).randbytes((0, 100, 10_000, 300_000)[number % 4])


def open_channel(number):
    """A connection of its own: channels that are alike would share one."""
    return grpc.insecure_channel(address, options=[("test.number", number), ("grpc.enable_http_proxy", 0)])


def ask(number):
    with open_channel(number) as channel:
        reverse = channel.unary_unary("/peer/Reverse")
        calls = [(message(i), reverse.future(message(i), timeout=20)) for i in range(CALLS)]
        for sent, call in calls:
            assert call.result() == sent[::-1], f"{len(sent)} bytes came back changed"
        sums = channel.stream_stream("/peer/Sums")
        got = list(sums((message(i) for i in range(MESSAGES)), timeout=20))
        assert got == [hashlib.sha256(message(i)).digest() for i in range(MESSAGES)], f"{len(got)} answers"


if role == "server":
    serve()
else:
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(ask, range(STREAMS)))
    print("right", STREAMS * (CALLS + MESSAGES))
