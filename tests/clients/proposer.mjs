// proposer.mjs - a proposer in another language: it serves Draft with prompt lookup in the contexts that it receives.
//
//   node tests/clients/proposer.mjs unix:/tmp/mine.sock
//   verifier-svc --model FILE --proposers unix:/tmp/mine.sock
//
// `lies` replaces answers by bad ones, for the tests: a verifier must continue as without an answer.
import {pathToFileURL} from 'node:url';
import {lookUp} from './verify_client.mjs';
import {grpc, tandem} from './stack.mjs';

const mask = (1n << 64n) - 1n;

function splitmix64(x) {
  let z = (x + 0x9e3779b97f4a7c15n) & mask;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & mask;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & mask;
  return z ^ (z >> 31n);
}

// d(0) = 0, d(i+1) = splitmix64(d(i) xor (token + 1))
export function digestOf(tokens, from = 0n) {
  return tokens.reduce((d, t) => splitmix64(d ^ BigInt(t + 1)), from);
}

const random = (n) => Math.floor(Math.random() * n);

// Each turns a good answer {seq, base_len, digest, tokens} into a bad one.
export const lies = {
  none: (d) => d,
  random: (d, k) => ({...d, tokens: Array.from({length: k}, () => random(4000))}),
  stale: (d) => ({...d, base_len: d.base_len - 1}),
  wrong_digest: (d) => ({...d, digest: (BigInt(d.digest) ^ 1n).toString()}),
  over_long: (d) => ({...d, tokens: Array.from({length: 5000}, () => random(4000))}),
  out_of_vocabulary: (d) => ({...d, tokens: [5, 4294967295, 1000000]}),
  unknown_sequence: (d) => ({...d, seq: (BigInt(d.seq) + 1000000n).toString()}),
  bad_parents: (d) => ({...d, tokens: [5, 6, 7], parents: [2, 7, -9]}),
  bad_q: (d) => ({...d, tokens: [5, 6], q_mode: 'Q_MODE_SPARSE', q_ids: Buffer.alloc(3), q_probs: Buffer.alloc(70000)}),
  bad_tensor: (d) => ({...d, tokens: [5], q_mode: 'Q_MODE_DENSE', q: {dtype: 'F32', shape: [4294967295, 4294967295], data: Buffer.alloc(4)}}),
  nan_survival: (d) => ({...d, tokens: [5, 6], survival: [NaN, Infinity]}),
  empty: (d) => ({...d, tokens: []}),
  need_context: (d) => ({seq: d.seq, need_context: true}),
  twice: (d) => [d, d],
  late: (d, k, send) => void setTimeout(() => send([d]), 400),
  silent: () => undefined,
  garbage: () => Buffer.from([0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x01]),
  huge: () => Buffer.alloc(3 << 20),
  ends: (d, k, send, stream) => void stream.end(),
  fails: (d, k, send, stream) => void stream.emit('error', {code: grpc.status.INTERNAL, details: 'out of order'}),
};

function serveDraft(lie, stream) {
  const contexts = new Map(); // by sequence; lives as long as the stream
  const send = (drafts) => stream.writable && stream.write(Buffer.isBuffer(drafts) ? drafts : {drafts});
  stream.on('error', () => {});
  stream.on('end', () => stream.end());
  stream.on('data', (round) => {
    const answers = [];
    for (const s of round.sequences) {
      const known = contexts.get(s.seq) ?? [];
      if (s.close) {
        contexts.delete(s.seq);
        continue;
      }
      if (s.keep > known.length) {
        answers.push({seq: s.seq, need_context: true});
        continue;
      }
      const context = [...known.slice(0, s.keep), ...s.tokens];
      contexts.set(s.seq, context);
      if (!s.k) continue;
      const digest = digestOf(context).toString();
      if (!s.more && digest !== s.digest) lie = lies.fails; // the context is inconsistent: end this stream, a new one starts empty
      const answer = lie({seq: s.seq, base_len: context.length, digest, tokens: lookUp(context, s.k)}, s.k, send, stream);
      if (answer) answers.push(answer);
    }
    const raw = answers.find(Buffer.isBuffer);
    if (raw || answers.length) send(raw ?? answers.flat());
  });
}

// Starts a proposer. lie(name) makes its answers bad and returns a function that counts them since then.
export async function serveProposer(address, name = 'none') {
  let lie = lies[name], answers = 0;
  const service = {...tandem.v1.Proposer.service};
  const plain = service.Draft.responseSerialize;
  service.Draft = {...service.Draft, responseSerialize: (m) => (Buffer.isBuffer(m) ? m : plain(m))};
  const server = new grpc.Server();
  server.addService(service, {
    Describe: (_, reply) => reply(null, {protocol: 1, kind: Buffer.from('lookup'), k_max: 16, q_modes: ['Q_MODE_POINT'],
      version: Buffer.from('1')}),
    Draft: (stream) => serveDraft((...a) => {
      answers++;
      return lie(...a);
    }, stream),
  });
  await new Promise((done, failed) =>
    server.bindAsync(address, grpc.ServerCredentials.createInsecure(), (e) => (e ? failed(e) : done())));
  const change = (to) => {
    lie = lies[to];
    answers = 0;
    return () => answers;
  };
  return {lie: change, stop: () => server.forceShutdown()};
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  await serveProposer(process.argv[2], process.argv[3]);
  console.log(`serving on ${process.argv[2]}`);
}
