// With bad, dead or stopped proposers no request fails, and every answer stays the same.
import assert from 'node:assert/strict';
import os from 'node:os';
import path from 'node:path';
import {test} from 'node:test';
import {lies, serveProposer} from './proposer.mjs';
import {generate, slow, Stack, tandem, until} from './stack.mjs';

const request = (i, more) => ({text: Buffer.from(`Once upon a time there was a ${['dog', 'cat', 'bird', 'boy'][i % 4]}`), add_bos: true,
  sampling: {temperature: i % 2 ? 0.8 : 0, seed: i}, max_tokens: 80, ignore_eos: true, logprobs: true, ...more});
const off = {speculative: {proposer: Buffer.from('none')}};
const bits = (choices) => choices.map(({ids, logprobs}) => ({ids, logprobs}));
const batch = (client, n, more) => Promise.all(Array.from({length: n}, (_, i) => generate(client, request(i, more)).then(bits)));

test('a proposer in another language', async (t) => {
  const address = `unix:${path.join(os.tmpdir(), `tandem-proposer-${process.pid}.sock`)}`;
  const proposer = await serveProposer(address);
  const stack = await Stack.start({proposers: [address]});
  const client = stack.client(tandem.v1.Verifier);
  const expected = await batch(client, 4, off);
  t.after(async () => {
    await stack.stop();
    proposer.stop();
  });

  const figures = async () => (await stack.stats()).proposers[0];
  // Batches until `happened`; every answer must be right.
  const batchesUntil = (what, happened) => until(what, async () => {
    assert.deepEqual(await batch(client, 4), expected);
    return happened();
  });

  const isUsed = async () => {
    proposer.lie('none');
    const before = Number((await figures()).accepted_tokens);
    await batchesUntil('accepted', async () => Number((await figures()).accepted_tokens) > before);
  };

  await t.test('its drafts are used', async () => {
    await isUsed();
    assert.equal((await figures()).name.toString(), 'lookup');
  });
  for (const lie of Object.keys(lies).filter((name) => name !== 'none')) {
    await t.test(`answers of the kind "${lie}" change nothing, and it is used again afterwards`, async () => {
      const told = proposer.lie(lie);
      await batchesUntil('it was told', () => told() > 0);
      await isUsed();
    });
  }
});

test('the n-gram proposer', async (t) => {
  const stack = await Stack.start({verifierArgs: ['--disable-batch-size', '0']});
  const client = stack.client(tandem.v1.Verifier);
  const expected = await batch(client, 8, off);
  t.after(() => stack.stop());
  // Sends requests continuously while something happens to the proposer; every answer must be right.
  const underLoad = async (happen) => {
    let stop = false, answers = 0;
    const load = (async () => {
      while (!stop) {
        assert.deepEqual(await batch(client, 8), expected);
        answers += 8;
      }
    })();
    await happen();
    stop = true;
    await load;
    assert.ok(answers > 0);
  };
  const accepted = async () => Number((await stack.stats()).proposers[0].accepted_tokens);
  const acceptsMore = async () => {
    const n = await accepted();
    await until('accepted again', async () => (await accepted()) > n);
  };

  await t.test('its drafts are used', () => underLoad(acceptsMore));
  await t.test('killed and started again under load, no request fails and it is used again', () => underLoad(async () => {
    stack.proposer.kill('SIGKILL');
    await stack.proposer.ended;
    await until('gone', async () => !(await stack.stats()).proposers[0].connected);
    stack.proposer.start();
    await acceptsMore();
  }));
  await t.test('stopped under load, no request fails, and it is used again when it continues', () => underLoad(async () => {
    stack.proposer.kill('SIGSTOP');
    await until('benched', async () => {
      const {proposers: [p]} = await stack.stats();
      return p.benched || !p.connected;
    });
    stack.proposer.kill('SIGCONT');
    await acceptsMore();
  }));
});

test('a verifier that is killed', async (t) => {
  const stack = await Stack.start({model: 'models/tales-11m-q8_0.gguf', proposers: [], verifierArgs: ['--max-sequences', '12'],
    gatewayArgs: ['--resume-wait', '0']}); // else the gateway waits for another verifier
  t.after(() => stack.stop());
  // Status and text of an answer, and its end time. The timeout is much longer than the expected time.
  const ask = async (stream, body) => {
    const answer = await stack.chat({stream, ignore_eos: true, ...body}, {signal: AbortSignal.timeout(30000 * slow)});
    return {stream, status: answer.status, text: await answer.text(), at: Date.now()};
  };
  const askBoth = (n, body) => Array.from({length: n}, (_, i) => ask(i % 2 === 0, body));
  const load = (running, waiting) => until(`${running} run and ${waiting} wait`, async () => {
    const s = await stack.stats();
    return s.running === running && s.waiting === waiting;
  });

  const restart = async () => {
    stack.verifier.start();
    await stack.healthy();
  };
  // Kills the verifier under 16 requests. The time in ms until the last answer has ended, always with an error.
  const killUnderLoad = async () => {
    const open = askBoth(12, {max_tokens: 900});
    await load(12, 0);
    open.push(...askBoth(4, {max_tokens: 900}));
    await load(12, 4);
    const killed = Date.now();
    stack.verifier.kill('SIGKILL');
    const answers = await Promise.all(open);
    for (const a of answers) {
      assert.ok(a.status === 503 || (a.stream && a.status === 200), `${a.status}`);
      assert.match(a.text, /"error"/);
    }
    await stack.verifier.ended;
    assert.equal((await fetch(`${stack.url}/health`)).status, 503);
    return Math.max(...answers.map((a) => a.at)) - killed;
  };

  await t.test('ends all 16 open answers with an error within a second, streamed, plain or waiting', async () => {
    let ms = await killUnderLoad();
    for (let i = 0; i < 4 && ms >= 1000 * slow; i++) { // a busy machine may need longer once
      await restart();
      ms = await killUnderLoad();
    }
    assert.ok(ms < 1000 * slow, `${ms} ms`);
  });
  await t.test('serves again after its restart', async () => {
    await restart();
    for (const a of await Promise.all(askBoth(16, {max_tokens: 5}))) {
      assert.equal(a.status, 200);
      assert.doesNotMatch(a.text, /"error"/);
    }
  });
});
