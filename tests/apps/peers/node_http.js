// node_http server|client HOST PORT: Node.js's http server and its fetch.
//
// The server answers a POST with the body's SHA-256 and the body itself. The client asks in parallel, over connections that it keeps.
"use strict";

const { createHash, randomBytes } = require("node:crypto");
const http = require("node:http");

const [role, host, port] = process.argv.slice(2);
const AT_ONCE = 16;
const ROUNDS = 12;

const sha256 = (data) => createHash("sha256").update(data).digest("hex");

function serve() {
  const server = http.createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
      const body = Buffer.concat(parts);
      response.setHeader("X-SHA256", sha256(body));
      response.end(body);
    });
  });
  server.listen(Number(port), host);
}

async function ask(number) {
  for (let round = 0; round < ROUNDS; round += 1) {
    const sent = randomBytes([1, 1000, 30_000, 500_000][(number + round) % 4]);
    const answer = await fetch(`http://${host}:${port}/`, { method: "POST", body: sent });
    const got = Buffer.from(await answer.arrayBuffer());
    if (answer.status !== 200 || !got.equals(sent) || answer.headers.get("X-SHA256") !== sha256(sent)) {
      throw new Error(`${number}: ${sent.length} bytes came back as ${got.length}, status ${answer.status}`);
    }
  }
}

async function askAll() {
  await Promise.all(Array.from({ length: AT_ONCE }, (_, number) => ask(number)));
  console.log("right", AT_ONCE * ROUNDS);
}

if (role === "server") {
  serve();
} else {
  askAll().catch((problem) => {
    console.error(problem);
    process.exit(1);
  });
}
