// app.js - settings, messages, and runs: one, or two to compare.
import {Answer} from './answer.js';
import {apiKey, chat, setApiKey} from './api.js';
import {hideCard} from './card.js';
import {byId, html, visible} from './dom.js';
import {startLive} from './live.js';

const lossy = ['threshold', 'typical', 'lenience'];
const options = byId('options').elements;
const runs = ['A', 'B'].map(addRun);
let messages = []; // of both sides
let stopping = null; // an AbortController while something runs

const setStatus = (text) => (byId('status').textContent = text);

// ---- settings ----

function addRun(name) {
  const fields = byId('run').content.cloneNode(true).firstElementChild;
  const legend = fields.querySelector('legend');
  legend.textContent = `Run ${name}`;
  byId('runs').append(fields);
  const field = (of) => fields.querySelector(`[name="${of}"]`);
  return {name, fields, field};
}

function showSettings() {
  const compares = options.compare.checked;
  runs[1].fields.hidden = !compares;
  byId('runs').classList.toggle('both', compares);
  for (const {fields, field} of runs) {
    const drafts = field('proposer').value !== 'none';
    field('k').disabled = field('fixed').disabled = field('rule').disabled = !drafts;
    fields.querySelector('.parameter').hidden = !lossy.includes(field('rule').value) || !drafts;
  }
}

const numberIn = (input) => (input.value === '' ? undefined : Number(input.value));

function speculative({field}) {
  if (field('proposer').value === 'none') return {proposer: 'none'};
  return {
    proposer: field('proposer').value || undefined, n_max: numberIn(field('k')), fixed: field('fixed').checked,
    rule: field('rule').value, rule_parameter: lossy.includes(field('rule').value) ? numberIn(field('parameter')) : undefined,
  };
}

function describeRun({proposer, n_max: k, rule, fixed}, seed) {
  if (proposer === 'none') return `no draft · seed ${seed}`;
  const length = k === undefined ? 'server’s k' : `k ${fixed ? '' : '≤ '}${k}`;
  return `${proposer ?? 'any proposer'} · ${length} · ${rule} · seed ${seed}`;
}

// Adds new names to the list. The selection and old names stay.
function addOptions(select, names) {
  const known = [...select.options].map((o) => o.value);
  select.append(...names.filter((n) => !known.includes(n)).map((n) => html('option', {value: n}, n)));
}

function onReport(report) {
  const served = byId('served');
  served.dataset.state = report?.status ?? 'unreachable';
  if (!report) {
    served.textContent = 'the gateway cannot be reached';
    return;
  }
  const models = [...new Set(report.verifiers.map((v) => v.model).filter(Boolean))];
  const proposers = [...new Set(report.verifiers.flatMap((v) => v.proposers ?? []).map((p) => p.name).filter(Boolean))];
  served.textContent = report.status === 'ok' ? models.join(', ') : `${models.join(', ')} ${report.status}`;
  addOptions(options.model, models);
  byId('model-row').hidden = models.length < 2;
  for (const {field} of runs) addOptions(field('proposer'), proposers);
}

// ---- runs ----

function requestOf(run, seed) {
  const system = options.system.value.trim();
  return {
    model: options.model.value || 'default',
    messages: system ? [{role: 'system', content: system}, ...messages] : messages,
    temperature: numberIn(options.temperature), max_tokens: numberIn(options.max_tokens), seed,
    stream: true, stream_options: {include_usage: true, include_tokens: true}, logprobs: true, top_logprobs: 5,
    speculative: speculative(run),
  };
}

const seedOf = () => numberIn(options.seed) ?? Math.floor(Math.random() * 2 ** 31);

function atBottom() {
  const page = document.documentElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight < 120;
}

const toBottom = () => document.documentElement.scrollTo({top: document.documentElement.scrollHeight});

async function stream(answer, body, signal) {
  try {
    for await (const chunk of chat(body, signal)) {
      const follow = atBottom();
      answer.take(chunk);
      if (follow) toBottom();
    }
    answer.close();
  } catch (e) {
    answer.close(signal.aborted ? 'Stopped.' : e.message);
  }
}

function compareAnswers(a, b) {
  if (!a.complete || !b.complete) return null;
  const at = a.tokens.findIndex((t, i) => t.id !== b.tokens[i]?.id);
  if (a.text === b.text && at < 0 && a.tokens.length === b.tokens.length) {
    const bytes = new TextEncoder().encode(a.text).length;
    return html('p', {class: 'verdict same'}, `Identical: ${a.tokens.length} tokens, ${bytes} bytes`);
  }
  const from = at < 0 ? a.tokens.length : at;
  const word = (t) => (t ? `“${visible(t.text)}”` : 'the end');
  for (const answer of [a, b]) answer.body.querySelector(`[data-at="${from}"]`)?.classList.add('differs');
  return html('p', {class: 'verdict'}, `Different from token ${from + 1}: A has ${word(a.tokens[from])}, B has ${word(b.tokens[from])}`);
}

// The runs are sequential: concurrent runs would slow each other down.
async function runAll(turn, signal) {
  const seed = seedOf(), chosen = options.compare.checked ? runs : runs.slice(0, 1);
  const bodies = chosen.map((run) => requestOf(run, seed));
  const answers = chosen.map(({name}, i) =>
    new Answer(chosen.length > 1 ? `Run ${name}` : 'Answer', describeRun(bodies[i].speculative, seed)));
  turn.append(html('div', {class: 'answers'}, ...answers.map((a) => a.node)));
  toBottom();
  for (const [i, answer] of answers.entries()) await stream(answer, bodies[i], signal);
  const verdict = answers.length > 1 ? compareAnswers(...answers) : null;
  if (verdict) turn.append(verdict);
  if (verdict) toBottom();
  return {answers, verdict};
}

function setRunning(controller) {
  stopping = controller;
  byId('send').disabled = controller !== null;
  byId('stop').disabled = controller === null;
}

async function send(text) {
  const controller = new AbortController();
  setRunning(controller);
  byId('turns').querySelector('.hint')?.remove();
  const turn = html('section', {class: 'turn', 'aria-label': 'Turn'}, html('p', {class: 'asked'}, text));
  byId('turns').append(turn);
  const conversation = messages; // clear() replaces `messages`
  conversation.push({role: 'user', content: text});
  setStatus('Answering');
  const {answers: [answer], verdict} = await runAll(turn, controller.signal);
  if (answer.text) conversation.push({role: 'assistant', content: answer.text});
  else conversation.pop();
  setRunning(null);
  setStatus(verdict?.textContent ?? (answer.complete ? `Done: ${answer.tokens.length} tokens` : 'Ended early'));
}

// ---- wiring ----

function submit(e) {
  e.preventDefault();
  const text = byId('prompt').value.trim();
  if (!text || stopping || !byId('options').reportValidity()) return;
  byId('prompt').value = '';
  byId('prompt').focus(); // the pressed button is disabled while the run lasts
  send(text);
}

function clear() {
  stopping?.abort();
  messages = [];
  byId('turns').replaceChildren();
  byId('prompt').focus();
}

runs[0].field('k').value = 4;
runs[1].field('proposer').value = 'none';
options.key.value = apiKey();
options.key.addEventListener('input', () => setApiKey(options.key.value.trim()));
byId('options').addEventListener('input', showSettings);
byId('options').addEventListener('submit', (e) => e.preventDefault());
byId('composer').addEventListener('submit', submit);
byId('prompt').addEventListener('keydown', (e) => {
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) submit(e);
});
byId('stop').addEventListener('click', () => stopping?.abort());
byId('clear').addEventListener('click', clear);
addEventListener('keydown', (e) => {
  if (e.key !== 'Escape') return;
  hideCard();
  stopping?.abort();
});
if (matchMedia('(max-width: 56rem)').matches) for (const id of ['settings', 'live']) byId(id).open = false;
showSettings();
startLive(onReport);
