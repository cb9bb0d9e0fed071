// @grpc/grpc-js against the services: with the proto files, and with the descriptors of reflection.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {generateWithDrafts} from './verify_client.mjs';
import {digestOf} from './proposer.mjs';
import {call, events, generate, grpc, health, need, slow, Stack, tandem, until} from './stack.mjs';

const {GrpcReflection} = need('grpc-js-reflection-client');
const prompt = {text: Buffer.from('Once upon a time'), add_bos: true};
const greedy = {...prompt, sampling: {temperature: 0}, max_tokens: 40};
let stack, verifier;

before(async () => {
  stack = await Stack.start();
  verifier = stack.client(tandem.v1.Verifier);
});
after(() => stack?.stop());

const refused = (code) => (e) => {
  assert.equal(e.code, grpc.status[code], e.message);
  assert.ok(e.details.length > 5, 'a sentence comes with it');
  return true;
};

test('Generate streams started, runs and finished', async () => {
  const all = await events(verifier.Generate(greedy));
  assert.ok(all[0].started);
  assert.ok(all.at(-1).finished);
  assert.equal(all.at(-1).finished.reason, 'FINISH_REASON_LENGTH');
  const tokens = all.flatMap((e) => e.run?.tokens ?? []);
  assert.equal(tokens.length, 40);
  assert.equal(all.at(-1).finished.completion_tokens, 40);
});

test('GetModel describes the served model', async () => {
  const model = await call(verifier, 'GetModel', {});
  assert.equal(model.state, 'READY');
  assert.equal(model.n_vocab, 4096);
  assert.equal(model.architecture.toString(), 'llama');
  assert.ok(model.chat_template.length > 0);
  assert.ok(model.context_length >= 512);
});

test('Tokenize and Detokenize give a text back', async () => {
  const text = 'Grüße, 世界! Once upon a time 🙂';
  const {ids} = await call(verifier, 'Tokenize', {text: Buffer.from(text)});
  const back = await call(verifier, 'Detokenize', {ids});
  assert.equal(back.text.toString(), text);
});

test('token ids as a prompt generate what their text does', async () => {
  const {ids} = await call(verifier, 'Tokenize', {text: prompt.text, add_bos: true});
  const [a] = await generate(verifier, greedy);
  const [b] = await generate(verifier, {tokens: {ids}, sampling: {temperature: 0}, max_tokens: 40});
  assert.deepEqual(b.ids, a.ids);
});

for (const [what, request, code] of [
  ['no prompt at all', {}, 'INVALID_ARGUMENT'],
  ['a token outside the vocabulary', {tokens: {ids: [4096]}}, 'INVALID_ARGUMENT'],
  ['invalid UTF-8', {text: Buffer.from([0xc3, 0x28])}, 'INVALID_ARGUMENT'],
  ['a negative temperature', {...prompt, sampling: {temperature: -1}}, 'INVALID_ARGUMENT'],
  ['a temperature that is no number', {...prompt, sampling: {temperature: NaN}}, 'INVALID_ARGUMENT'],
  ['an unknown model', {...prompt, model: Buffer.from('gpt-99')}, 'NOT_FOUND'],
  ['a prompt longer than the context', {tokens: {ids: Array(5000).fill(300)}}, 'INVALID_ARGUMENT'],
  ['17 stop strings', {...prompt, stop: Array(17).fill(Buffer.from('x'))}, 'INVALID_ARGUMENT'],
]) {
  test(`${what} is refused`, async () => assert.rejects(events(verifier.Generate(request)), refused(code)));
}

test('an unknown method is UNIMPLEMENTED, immediately', async () => {
  await assert.rejects(new Promise((done, failed) => verifier.makeUnaryRequest('/tandem.v1.Verifier/Guess', (x) => x,
    (x) => x, Buffer.alloc(0), {deadline: Date.now() + 20000 * slow}, (e) => (e ? failed(e) : done()))), {code: grpc.status.UNIMPLEMENTED});
});

test('a malformed message is refused', async () => {
  await assert.rejects(new Promise((done, failed) => verifier.makeUnaryRequest('/tandem.v1.Verifier/Tokenize', (x) => x,
    (x) => x, Buffer.from([0x0a, 0xff, 0xff]), {deadline: Date.now() + 20000 * slow}, (e) => (e ? failed(e) : done()))), refused('INVALID_ARGUMENT'));
});

test('cancelling ends the request within a round', async () => {
  const stream = verifier.Generate({...greedy, max_tokens: 900, ignore_eos: true});
  stream.once('data', () => stream.cancel());
  await assert.rejects(events(stream), {code: grpc.status.CANCELLED});
  await until('the sequence has ended', async () => (await stack.stats()).running === 0);
});

test('a deadline is observed', async () => {
  const stream = verifier.Generate({...greedy, max_tokens: 900, ignore_eos: true, n: 4}, {deadline: Date.now() + 30});
  await assert.rejects(events(stream), {code: grpc.status.DEADLINE_EXCEEDED});
  await until('the sequence has ended', async () => (await stack.stats()).running === 0);
});

test('health answers for the process and for each service', async () => {
  for (const [address, service] of [[stack.verifierAddress, 'tandem.v1.Verifier'], [stack.proposerAddress, 'tandem.v1.Proposer']]) {
    const client = stack.client(health.v1.Health, address);
    for (const name of ['', service]) assert.equal((await call(client, 'Check', {service: name})).status, 'SERVING');
    await assert.rejects(call(client, 'Check', {service: 'no.such.Service'}), {code: grpc.status.NOT_FOUND});
    const watch = client.Watch({service});
    const first = await new Promise((done) => watch.once('data', done));
    assert.equal(first.status, 'SERVING');
    watch.on('error', () => {});
    watch.cancel();
  }
});

test('reflection alone is enough to generate', async () => {
  const reflection = new GrpcReflection(stack.verifierAddress, grpc.ChannelCredentials.createInsecure());
  const services = await reflection.listServices();
  for (const name of ['tandem.v1.Verifier', 'tandem.v1.Stats', 'grpc.health.v1.Health']) {
    assert.ok(services.includes(name), `${name} in ${services}`);
  }
  const descriptor = await reflection.getDescriptorBySymbol('tandem.v1.Verifier');
  const reflected = descriptor.getPackageObject({keepCase: true, enums: String, longs: String, defaults: true, oneofs: true});
  const client = stack.client(reflected.tandem.v1.Verifier);
  const [a] = await generate(client, greedy);
  const [b] = await generate(verifier, greedy);
  assert.deepEqual(a.ids, b.ids);
  assert.equal((await call(client, 'GetModel', {})).n_vocab, 4096);
});

test('reflection lists the services of the proposer', async () => {
  const reflection = new GrpcReflection(stack.proposerAddress, grpc.ChannelCredentials.createInsecure());
  assert.ok((await reflection.listServices()).includes('tandem.v1.Proposer'));
  const methods = await reflection.listMethods('tandem.v1.Proposer');
  assert.deepEqual(methods.map((m) => m.name).sort(), ['Describe', 'Draft']);
});

// The package from the proposer's own descriptors.
async function reflectedProposer() {
  const reflection = new GrpcReflection(stack.proposerAddress, grpc.ChannelCredentials.createInsecure());
  const of = async (symbol) => (await reflection.getDescriptorBySymbol(symbol)).getPackageObject(
    {keepCase: true, enums: String, longs: String, defaults: true, oneofs: true}).tandem.v1;
  return {Proposer: (await of('tandem.v1.Proposer')).Proposer, Stats: (await of('tandem.v1.Stats')).Stats};
}

for (const [how, types] of [['the proto files', () => tandem.v1], ['reflection alone', reflectedProposer]]) {
  test(`a client with ${how} drives the proposer`, async (t) => {
    const {Proposer, Stats} = await types();
    const client = stack.client(Proposer, stack.proposerAddress);
    const stream = client.Draft({deadline: Date.now() + 20000 * slow});
    const replies = stream[Symbol.asyncIterator]();
    const round = async (s) => {
      stream.write({sequences: [s], budget_us: 1000000});
      const {drafts} = (await replies.next()).value;
      assert.equal(drafts.length, 1);
      assert.equal(drafts[0].seq, s.seq);
      return drafts[0];
    };
    const tokens = [11, 12, 13, 14, 15, 16, 11, 12, 13];
    const whole = {seq: '7', base_len: 9, keep: 0, tokens, digest: digestOf(tokens).toString(), k: 3, prompt_len: 9};

    await t.test('Describe names the proposer', async () => {
      const told = await call(client, 'Describe', {protocol: 1});
      assert.equal(told.protocol, 1);
      assert.equal(told.kind.toString(), 'ngram');
      assert.ok(told.k_max >= 3);
      assert.deepEqual(told.q_modes, ['Q_MODE_POINT']);
    });
    await t.test('a Round is answered with the earlier continuation', async () => {
      const draft = await round(whole);
      assert.deepEqual(draft.tokens, [14, 15, 16]);
      assert.equal(draft.base_len, 9);
      assert.equal(draft.digest, whole.digest);
      assert.equal(draft.need_context, false);
    });
    await t.test('an unknown sequence with a kept prefix needs its context', async () => {
      const draft = await round({...whole, seq: '8', keep: 5, tokens: tokens.slice(5)});
      assert.equal(draft.need_context, true);
      assert.deepEqual(draft.tokens, []);
    });
    await t.test('a stale digest needs the context, then drafts continue', async () => {
      const more = [...tokens, 14];
      const next = {...whole, base_len: 10, keep: 9, tokens: [14], digest: digestOf(more).toString()};
      assert.equal((await round({...next, digest: whole.digest})).need_context, true);
      assert.deepEqual((await round({...next, keep: 0, tokens: more})).tokens, [15, 16, 11]);
    });
    await t.test('GetStats counts it', async () => {
      const figures = await call(stack.client(Stats, stack.proposerAddress), 'GetStats', {});
      assert.equal(figures.service.toString(), 'proposer');
      assert.ok(figures.sessions >= 1);
      assert.ok(Number(figures.requests) >= 4 && Number(figures.generated_tokens) >= 6);
      assert.match(figures.prometheus.toString(), /^tandem_drafter_contexts_needed_total [1-9]/m);
    });
    stream.end();
    assert.ok((await replies.next()).done, 'the stream ends with OK');
  });
}

const ids = async () => (await call(verifier, 'Tokenize', {text: prompt.text, add_bos: true})).ids;
const open = {sampling: {temperature: 0}, max_tokens: 200, ignore_eos: true};

test('a client with its own drafts gets the tokens of Generate, in fewer rounds', async () => {
  const [plain] = await generate(verifier, {...open, tokens: {ids: await ids()}, logprobs: true});
  const drafted = await generateWithDrafts(verifier, {...open, logprobs: true}, await ids());
  assert.deepEqual(drafted.ids, plain.ids);
  assert.deepEqual(drafted.logprobs, plain.logprobs);
  assert.ok(drafted.accepted > 0);
  assert.equal(drafted.rounds, 200 - drafted.accepted, 'each round commits its accepted tokens and one more');
  assert.equal(drafted.finished.reason, 'FINISH_REASON_LENGTH');
});

test('perfect, empty and absurd drafts change the rounds but not the tokens', async () => {
  const prefix = await ids();
  const [plain] = await generate(verifier, {...open, tokens: {ids: prefix}, max_tokens: 60});
  const truth = [...prefix, ...plain.ids];
  const drafts = {
    perfect: (context, k) => truth.slice(context.length, context.length + k),
    empty: () => [],
    absurd: () => [9, 9, 9, 9, 9, 9, 9, 9],
  };
  for (const [name, draft] of Object.entries(drafts)) {
    const result = await generateWithDrafts(verifier, {...open, max_tokens: 60}, prefix, draft, 5);
    assert.deepEqual(result.ids, plain.ids, name);
    if (name === 'perfect') assert.ok(result.rounds <= 11, `${result.rounds} rounds`);
    if (name === 'empty') assert.equal(result.rounds, 60);
  }
});

test('a draft for another position is refused with both lengths', async () => {
  const stream = verifier.Verify();
  stream.write({open: {...open, tokens: {ids: [...await ids()]}}});
  stream.once('data', () => stream.write({draft: {base_len: 3000, tokens: [5]}}));
  await assert.rejects(events(stream), refused('FAILED_PRECONDITION'));
});

test('a draft before the request is refused', async () => {
  const stream = verifier.Verify();
  stream.write({draft: {base_len: 1, tokens: [5]}});
  await assert.rejects(events(stream), refused('FAILED_PRECONDITION'));
});
