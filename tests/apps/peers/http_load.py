"""http_load HOST PORT PATH SHA256 THREADS REQUESTS SECONDS: GETs for so long, or until SIGTERM, REQUESTS on each connection.

Says `answered by NAME` on standard error when a server answers for the first time. Prints one line of JSON: how many answers were right, what went wrong, and which `X-Server` headers were seen.
"""

import collections
import hashlib
import http.client
import json
import signal
import sys
import threading
import time

host, port, path, expected = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
threads, requests, seconds = map(int, sys.argv[5:8])
end = time.monotonic() + seconds
answers, connections, failures = collections.Counter(), collections.Counter(), collections.Counter()
seen, seeing = set(), threading.Lock()


def finish(*_):
    global end
    end = 0


def see(server):
    with seeing:
        if server not in seen:
            seen.add(server)
            print(f"answered by {server}", file=sys.stderr, flush=True)


def ask(connection):
    connection.request("GET", path)
    answer = connection.getresponse()
    digest = hashlib.sha256(answer.read()).hexdigest()
    assert answer.status == 200, f"status {answer.status}"
    assert digest == expected, "the body is another"
    return answer.headers.get("X-Server")


def talk(servers):
    """One connection."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        for _ in range(requests):
            server = ask(connection)
            see(server)
            servers[server] += 1
    except (OSError, http.client.HTTPException, AssertionError) as problem:
        failures[f"{problem}" or repr(problem)] += 1
    finally:
        connection.close()


def load(number):
    mine = collections.Counter()
    while time.monotonic() < end:
        talk(mine)
        connections[number] += 1
    answers.update(mine)


signal.signal(signal.SIGTERM, finish)
running = [threading.Thread(target=load, args=(number,)) for number in range(threads)]
# Threads start without the signal: one that came to them would not wake this one.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
for thread in running:
    thread.start()
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
for thread in running:
    thread.join()
print(json.dumps({"answers": answers.total(), "connections": connections.total(), "failures": failures, "servers": answers}))
