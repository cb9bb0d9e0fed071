// Tool calls and reasoning with the official OpenAI client and a fake verifier, whose answer is in the prompt.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {need, Stack} from './stack.mjs';
import {Verifier} from './verifier.mjs';

const {OpenAI} = need('openai');
const say = '{{ "Say: " + messages[-1].content }}';
const templates = { // the marks that the gateway recognises, and the beginning of an answer
  hermes: `{# <tool_call> <think> </think> #}${say}`,
  thinker: `{# <tool_call> <think> </think> #}${say}<think>\n`,
  mistral: `{# [TOOL_CALLS] #}${say}`,
  plain: say,
};
const tools = [{type: 'function', function: {name: 'get_weather', parameters: {type: 'object',
  properties: {city: {type: 'string'}}}}}];
const hermes = (city) => `<tool_call>\n{"name": "get_weather", "arguments": {"city": "${city}"}}\n</tool_call>`;
const verifiers = {};
let stack, openai;

before(async () => {
  stack = await Stack.startGateway((dir) => Promise.all(Object.entries(templates).map(async ([name, template]) => {
    verifiers[name] = await Verifier.start(`unix:${dir}/${name}.sock`, name, template);
    return verifiers[name].address;
  })));
  openai = new OpenAI({baseURL: `${stack.url}/v1`, apiKey: 'none', maxRetries: 0});
});
after(async () => {
  await stack?.stop();
  Object.values(verifiers).forEach((v) => v.stop());
});

const body = (model, content, more) => ({model, messages: [{role: 'user', content}], ...more});

// The whole answer, and the one that the client's helper assembles from events.
async function both(model, content, more = {}) {
  const whole = await openai.chat.completions.create(body(model, content, more));
  const stream = openai.chat.completions.stream(body(model, content, {...more, stream_options: {include_usage: true}}));
  let reasoning = '';
  for await (const chunk of stream) reasoning += chunk.choices[0]?.delta?.reasoning_content ?? '';
  const streamed = await stream.finalChatCompletion();
  const [a, b] = [whole.choices[0], streamed.choices[0]];
  assert.equal(b.finish_reason, a.finish_reason);
  assert.equal(b.message.content ?? '', a.message.content ?? '');
  assert.equal(reasoning, a.message.reasoning_content ?? '');
  const plain = (calls) => (calls ?? []).map((c) => [c.type, c.function.name, c.function.arguments]);
  assert.deepEqual(plain(b.message.tool_calls), plain(a.message.tool_calls));
  assert.deepEqual(streamed.usage.completion_tokens_details, whole.usage.completion_tokens_details);
  return {...a, usage: whole.usage};
}

test('tool calls are separated from the text', async () => {
  const {message, finish_reason} = await both('hermes', `I look.\n${hermes('Paris')}\n${hermes('Zürich')}`, {tools});
  assert.equal(finish_reason, 'tool_calls');
  assert.equal(message.content, 'I look.');
  assert.deepEqual(message.tool_calls.map((c) => JSON.parse(c.function.arguments).city), ['Paris', 'Zürich']);
  assert.match(message.tool_calls[0].id, /^call_[0-9A-Za-z]{9}$/);
  assert.notEqual(message.tool_calls[0].id, message.tool_calls[1].id);
});

test('a message that is a call has no content', async () => {
  const {message, finish_reason} = await both('mistral', '[TOOL_CALLS]get_weather[ARGS]{"city": "Bern"}', {tools});
  assert.equal(message.content, null);
  assert.equal(finish_reason, 'tool_calls');
  assert.match(message.tool_calls[0].id, /^[0-9A-Za-z]{9}$/); // the form that its template needs
});

test('the client may limit an answer to one call', async () => {
  const {message} = await both('hermes', hermes('Paris') + hermes('Bern'), {tools, parallel_tool_calls: false});
  assert.equal(message.tool_calls.length, 1);
  assert.equal(message.tool_calls[0].function.arguments, '{"city": "Paris"}');
});

test('text that is not a call stays text', async () => {
  for (const text of ['<tool_call>\n{"name": 1}\n</tool_call>', 'a <tool_call> b', '<tool_call>{"name": "f", ']) {
    const {message, finish_reason} = await both('hermes', text, {tools});
    assert.equal(message.content, text);
    assert.equal(finish_reason, 'stop');
    assert.equal(message.tool_calls, undefined);
  }
});

test('an answer that ends inside a call has finish reason length', async () => {
  const {message, finish_reason} = await both('hermes', hermes('Paris'), {tools, max_tokens: 9});
  assert.equal(finish_reason, 'length');
  assert.equal(message.content, hermes('Paris').slice(0, 27));
});

test('without tools, or with a template without tools, all is text', async () => {
  for (const [model, more] of [['hermes', {}], ['hermes', {tools, tool_choice: 'none'}], ['plain', {tools}]]) {
    const {message, finish_reason} = await both(model, hermes('Paris'), more);
    assert.equal(message.content, hermes('Paris'));
    assert.equal(finish_reason, 'stop');
  }
});

test('the client runs its tools with the arguments of the calls', async () => {
  const cities = [];
  const runner = openai.chat.completions.runTools(body('hermes', hermes('Paris'), {stream: true, tools: [{type: 'function',
    function: {name: 'get_weather', parse: JSON.parse, parameters: tools[0].function.parameters,
      function: ({city}) => (cities.push(city), 'sunny')}}]}));
  assert.equal(await runner.finalContent(), 'sunny');
  assert.deepEqual(cities, ['Paris']);
});

test('reasoning is separated, in the answer and in its usage', async () => {
  for (const [model, text] of [['hermes', '<think>\nTwo and two.\n</think>\n\nFour'], ['thinker', 'Two and two.\n</think>\n\nFour']]) {
    const {message, usage} = await both(model, text);
    assert.equal(message.reasoning_content, 'Two and two.');
    assert.equal(message.content, 'Four');
    const marked = text.indexOf('</think>') + '</think>'.length;
    assert.equal(usage.completion_tokens_details.reasoning_tokens, Math.ceil(marked / 3) - (model === 'hermes' ? 2 : 0));
  }
});

test('reasoning may be left out, or stay in the text', async () => {
  const text = '<think>Two.</think>Four';
  const without = await both('hermes', text, {include_reasoning: false});
  assert.equal(without.message.content, 'Four');
  assert.equal(without.message.reasoning_content, undefined);
  assert.ok(without.usage.completion_tokens_details.reasoning_tokens > 0);
  const raw = await both('hermes', text, {separate_reasoning: false});
  assert.equal(raw.message.content, text);
});

test('the verifier must show markers that are special tokens', async () => {
  await both('mistral', 'x', {tools});
  assert.deepEqual(verifiers.mistral.request.shown_special.map(String), ['[TOOL_CALLS]', '[ARGS]', '[CALL_ID]']);
  await both('mistral', 'x');
  assert.deepEqual(verifiers.mistral.request.shown_special, []);
});

test('every token has an event, also held-back ones', async () => {
  const stream = await openai.chat.completions.create(body('hermes', hermes('Paris'), {tools, stream: true, logprobs: true}));
  let tokens = 0;
  for await (const {choices: [c]} of stream) tokens += c.logprobs?.content.length ?? 0;
  assert.equal(tokens, Math.ceil(hermes('Paris').length / 3));
});
