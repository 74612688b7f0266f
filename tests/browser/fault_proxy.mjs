/** A TCP proxy that is a bad line: it cuts, delays, and goes silent while it keeps the connection open. Chance from a seed. */
import { once } from "node:events";
import { connect, createServer } from "node:net";

export function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export class FaultProxy {
  /** @param {() => number} port of the server behind, which may change */
  constructor(port, random, faults = { cut: 0.5, silent: 0.15, delay: 0.4 }) {
    this.port = port;
    this.random = random;
    this.faults = faults;
    this.counts = { connections: 0, cut: 0, silent: 0, delayed: 0 };
    this.sockets = new Set();
  }

  async start() {
    this.server = createServer((client) => this.carry(client)).listen(0, "127.0.0.1");
    await once(this.server, "listening");
    this.url = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  carry(client) {
    const { random, faults, counts } = this;
    counts.connections++;
    const behind = connect(this.port(), "127.0.0.1");
    const delayMs = random() < faults.delay ? random() * 60 : 0;
    if (delayMs > 0) counts.delayed++;
    const fate = random();
    // Faults strike after so many bytes towards the client, which is at any moment of what it is told.
    const after = Math.floor(random() ** 2 * 6000);
    let [told, isSilent] = [0, false];
    const end = () => {
      client.destroy();
      behind.destroy();
    };
    for (const socket of [client, behind]) {
      this.sockets.add(socket);
      socket.setNoDelay(true);
      socket.on("error", end);
      socket.on("close", () => {
        this.sockets.delete(socket);
        end();
      });
    }
    const later = (run) => (delayMs > 0 ? setTimeout(run, delayMs) : run());
    client.on("data", (data) => later(() => !isSilent && !behind.destroyed && behind.write(data)));
    behind.on("data", (data) =>
      later(() => {
        if (isSilent || client.destroyed) return;
        const left = after - told;
        told += data.length;
        if (fate >= faults.cut + faults.silent || told < after) return client.write(data);
        client.write(data.subarray(0, Math.max(0, left)));
        if (fate < faults.cut) {
          counts.cut++;
          end();
        } else {
          counts.silent++;
          isSilent = true;
        }
      }),
    );
  }

  async stop() {
    for (const socket of this.sockets) socket.destroy();
    this.server.close();
    await once(this.server, "close");
  }
}
