// The official OpenAI client against the running services.
import assert from 'node:assert/strict';
import {spawnSync} from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import {after, before, test} from 'node:test';
import {need, root, Stack, until} from './stack.mjs';

const {OpenAI} = need('openai');
const story = [{role: 'user', content: 'Tell me a story.'}];
let stack, openai;

before(async () => {
  stack = await Stack.start();
  openai = new OpenAI({baseURL: `${stack.url}/v1`, apiKey: 'none', maxRetries: 0});
});
after(() => stack?.stop());

const chat = (body) => openai.chat.completions.create({model: 'default', messages: story, temperature: 0, max_tokens: 40, ...body});

async function readStream(stream) {
  const all = {text: '', chunks: 0, finish: null, usage: null};
  for await (const chunk of stream) {
    if (chunk.usage) all.usage = chunk.usage;
    for (const c of chunk.choices) {
      all.chunks++;
      all.text += c.delta?.content ?? c.text ?? '';
      all.finish ??= c.finish_reason;
    }
  }
  return all;
}

test('a chat answers with text, reason and usage', async () => {
  const answer = await chat();
  assert.equal(answer.object, 'chat.completion');
  assert.equal(answer.choices.length, 1);
  assert.equal(answer.choices[0].message.role, 'assistant');
  assert.ok(answer.choices[0].message.content.length > 20);
  assert.equal(answer.choices[0].finish_reason, 'length');
  assert.equal(answer.usage.completion_tokens, 40);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 40);
});

test('a streamed chat is the same text, one event for each token', async () => {
  const plain = await chat();
  const streamed = await readStream(await chat({stream: true, stream_options: {include_usage: true}}));
  assert.equal(streamed.text, plain.choices[0].message.content);
  assert.equal(streamed.finish, 'length');
  assert.deepEqual(streamed.usage.completion_tokens, 40);
  assert.ok(streamed.chunks >= 40);
});

test('a completion continues its prompt, streamed or not', async () => {
  const body = {model: 'default', prompt: 'Once upon a time', temperature: 0, max_tokens: 30};
  const plain = await openai.completions.create(body);
  assert.equal(plain.object, 'text_completion');
  assert.ok(plain.choices[0].text.length > 10);
  const streamed = await readStream(await openai.completions.create({...body, stream: true}));
  assert.equal(streamed.text, plain.choices[0].text);
});

test('several prompts have the same choices as each prompt alone, streamed or not', async () => {
  const body = {model: 'default', temperature: 1, seed: 5, max_tokens: 12, n: 2};
  const prompts = ['Once upon a time', 'The cat', 'Lily'];
  const alone = [];
  let usage = 0;
  for (const prompt of prompts) {
    const one = await openai.completions.create({...body, prompt});
    alone.push(...one.choices.map((c) => c.text));
    usage += one.usage.prompt_tokens;
  }
  const all = await openai.completions.create({...body, prompt: prompts});
  assert.deepEqual(all.choices.map((c) => c.index), [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(all.choices.map((c) => c.text), alone);
  assert.equal(all.usage.prompt_tokens, usage);
  assert.equal(all.usage.completion_tokens, 6 * 12);
  const streamed = Array(6).fill('');
  for await (const chunk of await openai.completions.create({...body, prompt: prompts, stream: true}))
    for (const c of chunk.choices) streamed[c.index] += c.text;
  assert.deepEqual(streamed, alone);
});

test('a response is the text of the chat', async () => {
  const plain = await chat();
  const body = {model: 'default', input: story, temperature: 0, max_output_tokens: 40};
  const whole = await openai.responses.create(body);
  assert.equal(whole.output_text, plain.choices[0].message.content);
  assert.equal(whole.status, 'incomplete');
  assert.equal(whole.usage.output_tokens, 40);
  const streamed = await openai.responses.stream(body).finalResponse();
  assert.equal(streamed.output_text, whole.output_text);
});

test('several choices have their own indices and differ', async () => {
  const {choices} = await chat({n: 3, temperature: 1, seed: 7});
  assert.deepEqual(choices.map((c) => c.index).sort(), [0, 1, 2]);
  assert.equal(new Set(choices.map((c) => c.message.content)).size, 3);
});

test('the same seed gives the same text', async () => {
  const one = await chat({temperature: 1, seed: 42});
  const two = await chat({temperature: 1, seed: 42});
  assert.equal(one.choices[0].message.content, two.choices[0].message.content);
});

// An edit task: the prediction is the answer with some words replaced, one left out and one put in.
test('a prediction is most of the draft and changes nothing', async () => {
  const plain = await chat({max_tokens: 120});
  const text = plain.choices[0].message.content;
  assert.equal(plain.usage.completion_tokens_details, undefined);
  const words = text.split(' ');
  words[20] = 'Zebra';
  words.splice(40, 1);
  words.splice(60, 0, 'yesterday');
  for (const stream of [false, true]) {
    const body = {max_tokens: 120, prediction: {type: 'content', content: words.join(' ')}};
    let accepted = 0, rejected = 0;
    const enough = () => rejected > 0 && accepted >= 40 && accepted > 1.5 * rejected;
    for (let i = 0; i < 40 && !enough(); i++) { // drafts may be late on a busy machine
      const answer = stream ? await readStream(await chat({...body, stream, stream_options: {include_usage: true}})) : await chat(body);
      assert.equal(answer.text ?? answer.choices[0].message.content, text);
      assert.equal(answer.usage.completion_tokens, 120);
      ({accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected} = answer.usage.completion_tokens_details);
    }
    assert.ok(enough(), `${accepted} accepted, ${rejected} rejected`);
  }
});

test('speculation on and off give the same text', async () => {
  const on = await chat({temperature: 0.8, seed: 3, max_tokens: 100});
  const off = await chat({temperature: 0.8, seed: 3, max_tokens: 100, speculative: {proposer: 'none'}});
  assert.equal(on.choices[0].message.content, off.choices[0].message.content);
});

test('a draft that is shorter than asked for is left out', async () => {
  let plain;
  await until('drafts come in time', async () => { // drafts may be late on a busy machine
    plain = await chat({max_tokens: 100});
    return plain.metrics.speculative_decoding.num_draft_tokens > 0;
  });
  const without = await chat({max_tokens: 100, speculative: {n_min: 64, p_min: 0.1}});
  assert.equal(without.metrics.speculative_decoding.num_draft_tokens, 0);
  assert.equal(without.choices[0].message.content, plain.choices[0].message.content);
});

test('log-probabilities come for every token', async () => {
  const {choices} = await chat({logprobs: true, top_logprobs: 3});
  const {content} = choices[0].logprobs;
  assert.equal(content.length, 40);
  for (const t of content) {
    assert.ok(t.logprob <= 0);
    assert.equal(t.top_logprobs.length, 3);
    assert.equal(t.top_logprobs[0].token, t.token); // greedy: the best token
  }
});

test('a stop string ends the text before it', async () => {
  const whole = (await chat({max_tokens: 100})).choices[0].message.content;
  const stop = whole.slice(30, 34);
  const cut = await chat({max_tokens: 100, stop});
  assert.equal(cut.choices[0].finish_reason, 'stop');
  assert.equal(cut.choices[0].message.content, whole.slice(0, whole.indexOf(stop)));
});

test('models lists the served model', async () => {
  const models = await openai.models.list();
  assert.equal(models.data.length, 1);
  assert.equal(models.data[0].object, 'model');
  assert.deepEqual(await openai.models.retrieve(models.data[0].id), models.data[0]);
  await assert.rejects(openai.models.retrieve('gpt-99'), (e) => e.status === 404 && e.code === 'model_not_found');
  const answer = await chat({model: models.data[0].id, max_tokens: 2});
  assert.equal(answer.model, models.data[0].id);
});

for (const [what, body, status] of [
  ['an unknown model', {model: 'gpt-99'}, 404],
  ['no messages', {messages: undefined}, 400],
  ['an unknown role', {messages: [{role: 'wizard', content: 'x'}]}, 400],
  ['a negative temperature', {temperature: -1}, 400],
  ['an absurd top_p', {top_p: 17}, 400],
  ['a text as max_tokens', {max_tokens: 'many'}, 400],
  ['too many choices', {n: 100000}, 400],
  ['an unknown proposer', {speculative: {proposer: 'eagle'}}, 400],
]) {
  test(`${what} is refused with ${status} and a sentence`, async () => {
    await assert.rejects(chat(body), (e) => {
      assert.equal(e.status, status, e.message);
      assert.ok(e.error?.message?.length > 5, JSON.stringify(e.error));
      assert.ok(e.error.type);
      return true;
    });
  });
}

for (const [what, words, unit] of [['longer than the context', 3000, 'tokens'], ['of 1 MB', 200000, 'bytes']]) {
  test(`a prompt ${what} is refused with its length and the context's`, async () => {
    const prompt = 'word '.repeat(words);
    const context = (await openai.models.list()).data[0].max_model_len;
    const told = (e) => {
      assert.equal(e.status, 400, e.message);
      const [, has, its, holds] = e.message.match(/the prompt has (\d+) (tokens|bytes); the context holds (\d+)/) ?? [];
      assert.equal(its, unit, e.message);
      assert.ok(Number(has) >= words && Number(has) <= prompt.length + 100, e.message);
      assert.equal(Number(holds), context, e.message);
      return true;
    };
    await assert.rejects(chat({messages: [{role: 'user', content: prompt}]}), told);
    await assert.rejects(openai.completions.create({model: 'default', prompt}), told);
  });
}

test('an empty prompt is served if BOS or the template adds a token', async () => {
  const complete = (body) => openai.completions.create({model: 'default', prompt: '', max_tokens: 3, ...body});
  assert.equal((await complete()).usage.prompt_tokens, 1);
  await assert.rejects(complete({add_special_tokens: false}), (e) => e.status === 400 && /the prompt is empty/.test(e.message));
  assert.ok((await chat({messages: [{role: 'user', content: ''}]})).usage.prompt_tokens > 0);
});

test('limits of a key are in the header, and a request above them is a RateLimitError', async () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tandem-test-'));
  const file = path.join(dir, 'keys');
  fs.writeFileSync(file, 'alice sk-the-key-of-alice rate=60 tokens_per_day=60\n', {mode: 0o600});
  const keyed = await Stack.start({proposers: [], gatewayArgs: ['--api-keys', file]});
  try {
    const alice = new OpenAI({baseURL: `${keyed.url}/v1`, apiKey: 'sk-the-key-of-alice', maxRetries: 0});
    const body = {model: 'default', prompt: 'Once', max_tokens: 40};
    const {response} = await alice.completions.create(body).withResponse();
    assert.equal(response.headers.get('x-ratelimit-limit-requests'), '60');
    assert.equal(response.headers.get('x-ratelimit-limit-tokens'), '60');
    assert.equal(response.headers.get('x-ratelimit-remaining-tokens'), '19');
    assert.match(response.headers.get('x-ratelimit-reset-requests'), /^\d+(\.\d+)?m?s$/);
    await assert.rejects(alice.completions.create(body), (e) => e instanceof OpenAI.RateLimitError &&
      e.code === 'rate_limit_exceeded' && Number(e.headers.get('retry-after')) >= 1);
  } finally {
    await keyed.stop();
    fs.rmSync(dir, {recursive: true});
  }
});

test('a disconnect frees the sequence', async () => {
  const stream = await chat({stream: true, max_tokens: 900, ignore_eos: true});
  for await (const _ of stream) break; // leaving the loop aborts the request
  await until('the sequence has ended', async () => {
    const {running, waiting} = await stack.stats();
    return running + waiting === 0;
  });
});

test('64 parallel streams each get their own answer', async () => {
  const names = Array.from({length: 64}, (_, i) => ['Max', 'Lily', 'Tom', 'Anna'][i % 4] + i);
  const body = (name) => ({messages: [{role: 'user', content: `Write a story about a dog named ${name}.`}], max_tokens: 24, ignore_eos: true});
  const all = await Promise.all(names.map(async (name) => readStream(await chat({...body(name), stream: true}))));
  assert.ok(all.every((a) => a.finish === 'length'));
  const alone = await chat(body(names[9]));
  assert.equal(all[9].text, alone.choices[0].message.content);
});

test('metrics are well-formed and count the requests', async (t) => {
  const text = await (await fetch(`${stack.url}/metrics`)).text();
  assert.match(text, /^tandem_generation_tokens_total\{?.* \d+/m);
  const promtool = path.join(root, 'build/promtool');
  if (!fs.existsSync(promtool)) return t.skip('there is no build/promtool');
  const check = spawnSync(promtool, ['check', 'metrics'], {input: text, encoding: 'utf8'});
  assert.equal(check.status, 0, check.stderr);
});

test('health shows process, verifier, proposers, cache and speculation', async () => {
  const health = await (await fetch(`${stack.url}/health`)).json();
  assert.equal(health.status, 'ok');
  assert.ok(health.uptime_s > 0);
  const [{state, cache, proposers}] = health.verifiers;
  assert.equal(state, 'ready');
  assert.ok(cache.blocks_total > 0 && cache.blocks_used <= cache.blocks_total && cache.bytes > 0, JSON.stringify(cache));
  assert.deepEqual(proposers.map((p) => [p.name, p.connected]), [['ngram', true]]);
  const figures = await (await fetch(`${stack.url}/v1/spec_decode/metrics`)).json();
  assert.deepEqual(Object.keys(health.spec_decode), Object.keys(figures));
});

test('speculation metrics have exactly the documented keys', async () => {
  const figures = await (await fetch(`${stack.url}/v1/spec_decode/metrics`)).json();
  assert.deepEqual(Object.keys(figures).sort(), ['acceptance_rate_ema', 'acceptance_rate_overall', 'adaptive_k_current',
    'avg_tokens_per_step', 'current_k', 'spec_decode_enabled', 'spec_decode_mode', 'total_accepted',
    'total_bonus_tokens', 'total_fallback_steps', 'total_proposed', 'total_steps']);
  assert.equal(figures.spec_decode_mode, 'ngram');
  assert.ok(figures.total_accepted > 0 && figures.total_accepted <= figures.total_proposed);
  assert.ok(figures.avg_tokens_per_step >= 1);
});
