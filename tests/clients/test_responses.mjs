// POST /v1/responses with the official OpenAI client and a fake verifier, whose answer is in the prompt.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {need, Stack} from './stack.mjs';
import {Verifier} from './verifier.mjs';

const {OpenAI} = need('openai');
const templates = {
  hermes: '{# <tool_call> <think> </think> #}{{ "Say: " + messages[-1].content }}',
  shows: '{{ "Say: " + messages | tojson + (tools | tojson if tools else "") }}', // the variables of the template
  // The output of the tool is the last message.
  agent: `{# <tool_call> #}{% if messages[-1].role == "tool" %}{{ "Say: " + messages[-1].name + ": " + messages[-1].content }}
{%- else %}{{ 'Say: Let me see.\\n<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>' }}{% endif %}`,
};
const tools = [{type: 'function', name: 'get_weather', strict: false, description: 'Weather',
  parameters: {type: 'object', properties: {city: {type: 'string'}}}}];
const verifiers = [];
let stack, openai;

before(async () => {
  stack = await Stack.startGateway((dir) => Promise.all(Object.entries(templates).map(async ([name, template]) => {
    verifiers.push(await Verifier.start(`unix:${dir}/${name}.sock`, name, template));
    return verifiers.at(-1).address;
  })));
  openai = new OpenAI({baseURL: `${stack.url}/v1`, apiKey: 'none', maxRetries: 0});
});
after(async () => {
  await stack?.stop();
  verifiers.forEach((v) => v.stop());
});

const respond = (model, input, more = {}) => openai.responses.create({model, input, ...more});

async function eventsOf(model, input, more = {}) {
  const all = [];
  for await (const e of await respond(model, input, {...more, stream: true})) all.push(e);
  assert.deepEqual(all.map((e) => e.sequence_number), all.map((_, i) => i));
  return all;
}

// The output without fields that differ between answers, and without fields that the client adds.
const other = ['id', 'call_id', 'parsed', 'parsed_arguments'];
const plain = (response) => JSON.parse(JSON.stringify(response.output, (key, v) => (other.includes(key) ? undefined : v)));

test('a text is answered with a message', async () => {
  const r = await respond('hermes', 'Hello there.', {temperature: 0.5, metadata: {a: 'b'}});
  assert.equal(r.object, 'response');
  assert.equal(r.status, 'completed');
  assert.equal(r.output_text, 'Hello there.');
  assert.match(r.id, /^resp_/);
  assert.equal(r.temperature, 0.5);
  assert.deepEqual(r.metadata, {a: 'b'});
  assert.equal(r.store, false);
  assert.deepEqual([r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens], [7, 4, 11]);
});

test('a stream has typed events in order', async () => {
  const all = await eventsOf('hermes', 'Hello.');
  assert.deepEqual(all.map((e) => e.type.replace('response.', '')), ['created', 'in_progress', 'output_item.added',
    'content_part.added', 'output_text.delta', 'output_text.delta', 'output_text.done', 'content_part.done',
    'output_item.done', 'completed']);
  assert.equal(all.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join(''), 'Hello.');
  assert.equal(all.at(-1).response.output[0].content[0].text, 'Hello.');
  assert.equal(all.at(-1).response.id, all[0].response.id);
});

test('the client assembles the same response from a stream', async () => {
  for (const text of ['Hello.', '<think>Hm.</think>\n\nWell.', '<think>Hm']) {
    const whole = await respond('hermes', text);
    const streamed = await openai.responses.stream({model: 'hermes', input: text}).finalResponse();
    assert.deepEqual(plain(streamed), plain(whole));
    assert.equal(streamed.output_text, whole.output_text);
  }
});

test('reasoning is a separate item', async () => {
  const r = await respond('hermes', '<think>Hm.</think>\n\nWell.');
  assert.deepEqual(r.output.map((o) => o.type), ['reasoning', 'message']);
  assert.deepEqual(r.output[0].content, [{type: 'reasoning_text', text: 'Hm.'}]);
  assert.equal(r.output_text, 'Well.');
  assert.ok(r.usage.output_tokens_details.reasoning_tokens > 0);
  const all = await eventsOf('hermes', '<think>Hm.</think>\n\nWell.');
  assert.equal(all.filter((e) => e.type === 'response.reasoning_text.delta').map((e) => e.delta).join(''), 'Hm.');
});

test('only the text of the message has logprobs', async () => {
  const include = ['message.output_text.logprobs'];
  const whole = await respond('hermes', '<think>Hm.</think>\n\nWell then.', {include, top_logprobs: 1});
  const [, message] = whole.output, {logprobs} = message.content[0];
  assert.equal(logprobs.map((l) => l.token).join('').trim(), 'Well then.');
  assert.ok(logprobs.every((l) => l.logprob <= 0 && l.top_logprobs.length === 1));
  assert.equal(whole.top_logprobs, 1);
  const all = await eventsOf('hermes', '<think>Hm.</think>\n\nWell then.', {include, top_logprobs: 1});
  assert.deepEqual(all.filter((e) => e.type === 'response.output_text.delta').flatMap((e) => e.logprobs), logprobs);
  assert.deepEqual(all.find((e) => e.type === 'response.output_text.done').logprobs, logprobs);
  assert.deepEqual((await respond('hermes', 'Hello.')).output[0].content[0].logprobs, []);
  await assert.rejects(respond('hermes', 'Hello.', {top_logprobs: 1}), (e) => e.status === 400 && e.param === 'top_logprobs');
  await assert.rejects(respond('hermes', 'Hello.', {include: 'all'}), (e) => e.status === 400 && e.param === 'include');
});

test('a tool is called, and its output answered', async () => {
  const input = [{role: 'user', content: 'Weather in Paris?'}];
  const first = await respond('agent', input, {tools});
  assert.deepEqual(first.output.map((o) => o.type), ['message', 'function_call']);
  const call = first.output[1];
  assert.deepEqual([call.name, call.arguments, call.status], ['get_weather', '{"city": "Paris"}', 'completed']);
  assert.equal(first.output_text, 'Let me see.');
  assert.equal(first.tools[0].name, 'get_weather');
  input.push(...first.output, {type: 'function_call_output', call_id: call.call_id, output: 'sunny'});
  assert.equal((await respond('agent', input, {tools})).output_text, 'get_weather: sunny');
});

test('a streamed call has its own events', async () => {
  const all = await eventsOf('agent', 'Weather?', {tools});
  const names = all.map((e) => e.type.replace('response.', ''));
  assert.deepEqual(names.slice(names.lastIndexOf('output_item.added')), ['output_item.added', 'function_call_arguments.delta',
    'function_call_arguments.done', 'output_item.done', 'completed']);
  const done = all.find((e) => e.type === 'response.function_call_arguments.done');
  assert.deepEqual([done.arguments, done.output_index], ['{"city": "Paris"}', 1]);
  const streamed = await openai.responses.stream({model: 'agent', input: 'Weather?', tools}).finalResponse();
  assert.deepEqual(plain(streamed), plain(await respond('agent', 'Weather?', {tools})));
});

test('items become the messages of a chat', async () => {
  const r = await respond('shows', [
    {role: 'developer', content: [{type: 'input_text', text: 'a'}, {type: 'input_text', text: 'b'}]},
    {type: 'reasoning', id: 'rs_1', summary: [], content: [{type: 'reasoning_text', text: 'think'}]},
    {type: 'message', role: 'assistant', id: 'm', status: 'completed', content: [{type: 'output_text', text: 'c', annotations: []}]},
    {type: 'function_call', call_id: 'one', name: 'f', arguments: '{"x":1}'},
    {type: 'function_call', call_id: 'two', name: 'g', arguments: '{}'},
    {type: 'function_call_output', call_id: 'two', output: 'out'},
  ], {instructions: 'Be brief.', tools});
  const call = (id, name, args) => ({id, type: 'function', function: {name, arguments: args}});
  const {parameters} = tools[0];
  assert.deepEqual(JSON.parse(`[${r.output_text.replace('][', '],[')}]`), [[
    {role: 'system', content: 'Be brief.'},
    {role: 'system', content: 'a\nb'}, // for templates without the role developer
    {role: 'assistant', content: 'c', reasoning_content: 'think', tool_calls: [call('one', 'f', {x: 1}), call('two', 'g', {})]},
    {role: 'tool', tool_call_id: 'two', content: 'out', name: 'g'},
  ], [{type: 'function', function: {name: 'get_weather', description: 'Weather', parameters}}]]);
});

test('an answer over max_output_tokens is incomplete', async () => {
  const r = await respond('hermes', 'Hello there.', {max_output_tokens: 2});
  assert.equal(r.status, 'incomplete');
  assert.deepEqual(r.incomplete_details, {reason: 'max_output_tokens'});
  assert.equal(r.output_text, 'Hello ');
  assert.equal((await eventsOf('hermes', 'Hello there.', {max_output_tokens: 2})).at(-1).type, 'response.incomplete');
});

for (const [param, more] of [
  ['previous_response_id', {previous_response_id: 'resp_1'}],
  ['store', {store: true}],
  ['background', {background: true}],
  ['input', {input: undefined}],
  ['input[0].content', {input: [{role: 'user', content: [{type: 'input_image', image_url: 'x'}]}]}],
  ['input[0]', {input: [{type: 'item_reference', id: 'x'}]}],
  ['input[0]', {input: [{type: 'function_call', call_id: 'x', name: 'f'}]}],
  ['input', {input: [{role: 'wizard', content: 'x'}]}],
  ['instructions', {instructions: 5}],
  ['max_output_tokens', {max_output_tokens: 'many'}],
  ['tools[0]', {tools: [{type: 'web_search'}]}],
  ['tool_choice', {tool_choice: 'required', tools}],
  ['text.format', {text: {format: {type: 'json_object'}}}],
  ['truncation', {truncation: 'auto'}],
]) {
  test(`${JSON.stringify(more)} is refused by name`, async () => {
    await assert.rejects(respond('hermes', 'x', more), (e) => {
      assert.equal(e.status, 400, e.message);
      assert.equal(e.param, param, e.message);
      return true;
    });
  });
}

test('no response is stored', async () => {
  await assert.rejects(openai.responses.retrieve('resp_1'), (e) => e.status === 404 && /not stored/.test(e.message));
});

test('a stream that cannot continue ends as failed', async () => {
  const stream = await respond('hermes', 'stall', {stream: true});
  const all = [];
  for await (const e of stream) {
    all.push(e);
    if (e.type === 'response.output_text.delta') verifiers[0].stop();
  }
  assert.equal(all.at(-1).type, 'response.failed');
  assert.equal(all.at(-1).response.status, 'failed');
  assert.ok(all.at(-1).response.error.message.length > 5);
});
