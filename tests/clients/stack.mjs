// stack.mjs - the three services on private sockets, for the tests of one file.
import assert from 'node:assert/strict';
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import fs from 'node:fs';
import {createRequire} from 'node:module';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import {fileURLToPath} from 'node:url';

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const bin = process.env.TANDEM_BIN ?? path.join(root, 'build/release');
const clients = process.env.TANDEM_CLIENTS ?? path.join(root, 'build/clients');
export const need = createRequire(path.join(clients, 'x.js')); // packages are in build/, not next to the sources

export const grpc = need('@grpc/grpc-js');
const proto = need('@grpc/proto-loader').loadSync(
  ['tandem/v1/verifier.proto', 'tandem/v1/proposer.proto', 'tandem/v1/stats.proto', 'grpc/health/v1/health.proto'],
  {includeDirs: [path.join(root, 'proto')], longs: String, enums: String, defaults: true, oneofs: true, keepCase: true});
export const {tandem, grpc: {health}} = grpc.loadPackageDefinition(proto);

const reports = /ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:/;
export const slow = /asan|tsan/.test(bin) ? 5 : 1; // factor for time limits

export async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const {port} = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

// Calls `ask` until its result is true. After the timeout its last error is shown.
export async function until(what, ask, limitMs = 60000) {
  const end = Date.now() + limitMs * slow;
  let error = '';
  while (Date.now() < end) {
    try {
      const answer = await ask();
      if (answer) return answer;
    } catch (e) {
      error = e.message;
    }
    await new Promise((done) => setTimeout(done, 20));
  }
  throw new Error(`${what}: not within ${limitMs * slow} ms ${error}`);
}

class Service {
  constructor(stack, name, args) {
    Object.assign(this, {name, args, log: path.join(stack.dir, `${name}.log`)});
    this.start();
  }

  start() {
    const log = fs.openSync(this.log, 'a');
    this.process = spawn(path.join(bin, this.name), this.args, {stdio: ['ignore', log, log]});
    fs.closeSync(log);
    this.ended = once(this.process, 'exit').then(([code, signal]) => (this.status = signal ?? code));
    this.status = undefined;
  }

  kill(signal) {
    this.process.kill(signal);
  }

  text() {
    return fs.readFileSync(this.log, 'utf8');
  }

  async stop() {
    if (this.status !== undefined) return;
    this.kill('SIGCONT');
    this.kill('SIGTERM');
    await Promise.race([this.ended, new Promise((_, fail) =>
      setTimeout(() => fail(new Error(`${this.name} does not stop`)), 30000 * slow).unref())]);
  }
}

export class Stack {
  // proposers: 'ngram' starts a proposer-svc, else addresses of proposers. proposerArgs, verifierArgs, gatewayArgs: more options for them.
  static async start({model = 'models/tales-1m-q8_0.gguf', proposers = ['ngram'], proposerArgs = [], verifierArgs = [], gatewayArgs = []} = {}) {
    const stack = new Stack();
    stack.dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tandem-test-'));
    stack.port = await freePort();
    stack.url = `http://127.0.0.1:${stack.port}`;
    stack.verifierAddress = `unix:${stack.dir}/verifier.sock`;
    stack.proposerAddress = `unix:${stack.dir}/proposer.sock`;
    if (proposers.includes('ngram')) stack.proposer = new Service(stack, 'proposer-svc',
      ['--listen', stack.proposerAddress, ...proposerArgs]);
    const targets = proposers.map((p) => (p === 'ngram' ? stack.proposerAddress : p));
    stack.verifier = new Service(stack, 'verifier-svc', ['--listen', stack.verifierAddress, '--model',
      path.resolve(root, model), '--policy', 'fixed',
      ...targets.flatMap((t) => ['--proposers', t]), ...verifierArgs]);
    stack.gateway = new Service(stack, 'gateway', ['--listen', `127.0.0.1:${stack.port}`, '--verifiers',
      stack.verifierAddress, ...gatewayArgs]);
    try {
      await stack.healthy();
    } catch (e) {
      await stack.stop().catch(() => {});
      throw e;
    }
    return stack;
  }

  // Only a gateway, with verifiers of the test. listen(dir): starts them and returns their addresses.
  static async startGateway(listen, args = []) {
    const stack = new Stack();
    stack.dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tandem-test-'));
    stack.port = await freePort();
    stack.url = `http://127.0.0.1:${stack.port}`;
    const verifiers = await listen(stack.dir);
    stack.gateway = new Service(stack, 'gateway', ['--listen', `127.0.0.1:${stack.port}`, '--verifiers',
      verifiers.join(','), ...args]);
    await until('ready', async () => {
      const models = await fetch(`${stack.url}/v1/models`);
      return models.ok && (await models.json()).data.length === verifiers.length;
    });
    return stack;
  }

  get services() {
    return [this.gateway, this.verifier, this.proposer].filter(Boolean);
  }

  async healthy() {
    await until('healthy', async () => {
      for (const s of this.services) assert.equal(s.status, undefined, `${s.name} ended: ${s.text()}`);
      return (await fetch(`${this.url}/health`)).ok;
    });
    await until('proposers connected', async () => {
      const {proposers} = await this.stats();
      return proposers.every((p) => p.connected);
    });
  }

  client(Type, address = this.verifierAddress) {
    return new Type(address, grpc.credentials.createInsecure());
  }

  // The typed statistics of the verifier.
  stats() {
    return call(this.client(tandem.v1.Stats), 'GetStats', {});
  }

  chat(body, options = {}) {
    return fetch(`${this.url}/v1/chat/completions`, {method: 'POST', headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({messages: [{role: 'user', content: 'Tell me a story.'}], ...body}), ...options});
  }

  // Drains all services. Fails if a sanitizer has reported an error.
  async stop() {
    for (const s of this.services) await s.stop();
    for (const s of this.services) {
      const text = s.text();
      assert.ok(!reports.test(text), `${s.name}: ${text}`);
    }
    fs.rmSync(this.dir, {recursive: true});
  }
}

// A unary call as a promise.
export function call(client, method, request, options = {}) {
  return new Promise((done, failed) =>
    client[method](request, {deadline: Date.now() + 20000 * slow, ...options}, (e, reply) => (e ? failed(e) : done(reply))));
}

// A server stream, or the rest of one, as an array.
export async function events(stream) {
  const all = [];
  for await (const e of stream) all.push(e);
  return all;
}

// The tokens that Generate committed: ids and logprobs by choice, in order.
export async function generate(client, request) {
  const choices = [];
  for (const e of await events(client.Generate(request, {deadline: Date.now() + 60000 * slow}))) {
    const c = (choices[e.choice] ??= {ids: [], logprobs: [], text: ''});
    if (e.started) c.started = e.started;
    for (const t of e.run?.tokens ?? []) {
      c.ids.push(t.id);
      c.logprobs.push(t.logprob);
      c.text += t.text.toString();
    }
    if (e.finished) {
      c.finished = e.finished;
      c.text += e.finished.text.toString();
    }
  }
  return choices;
}
