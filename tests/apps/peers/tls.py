"""tls server|client HOST PORT CERTIFICATE KEY: asyncio with TLS.

The server answers every line with its SHA-256. The client asks on CONNECTIONS connections at once, and ends each with TLS's own farewell.
"""

import asyncio
import hashlib
import random
import ssl
import sys

CONNECTIONS, LINES, LIMIT = 24, 12, 1 << 20
role, host, port, certificate, key = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]


async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(hashlib.sha256(line).hexdigest().encode() + b"\n")
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def serve():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(answer, host, port, ssl=context, limit=LIMIT)
    async with server:
        await server.serve_forever()


def line_of(number, turn):
    length = (10, 1000, 20_000, 200_000)[turn % 4]
    return random.Random(number * 100 + turn).randbytes(length // 2).hex().encode() + b"\n"


async def ask(number):
    # The certificate must be the one made for this test, and made out to this address.
    context = ssl.create_default_context(cafile=certificate)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    # Some write everything before they read.
    ahead = number % 3 == 0
    lines = [line_of(number, turn) for turn in range(LINES)]
    if ahead:
        writer.writelines(lines)
    for line in lines:
        if not ahead:
            writer.write(line)
        got = await asyncio.wait_for(reader.readline(), 20)
        assert got == hashlib.sha256(line).hexdigest().encode() + b"\n", (number, len(line), got)
    writer.close()
    await writer.wait_closed()


async def ask_all():
    await asyncio.gather(*[ask(number) for number in range(CONNECTIONS)])
    print("right", CONNECTIONS * LINES)


asyncio.run(serve() if role == "server" else ask_all())
