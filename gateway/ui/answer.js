// answer.js - the answer of one run: its tokens, its rounds, its statistics.
import {describe, hideCard, showCard} from './card.js';
import {byId, html, number, oncePerFrame, svg} from './dom.js';

const CELL = 6; // of the picture of rounds, in pixels

// The fields of an event that describe its token, in one object.
function tokenOf(chunk, thought, content) {
  const logprobs = chunk.choices[0].logprobs?.content?.[0];
  return {...chunk.tandem.tokens[0], text: thought + content, isThought: thought !== '',
    own: logprobs?.token, logprob: logprobs?.logprob, top: logprobs?.top_logprobs ?? []};
}

// A column for each round: accepted draft tokens, the target's token on top, then rejected draft tokens.
function column(round, x, height) {
  const kinds = [...Array(round.accepted).fill('accepted'), ...(round.own ? [round.own] : []),
    ...Array(Math.max(0, round.drafted - round.accepted)).fill('lost')];
  return kinds.map((kind, i) => svg('rect', {class: kind, x: x + 0.5, y: height - (i + 1) * CELL + 0.5,
    width: CELL - 1, height: CELL - 1, rx: 1}));
}

function figure(name, title) {
  const value = html('dd', {}, '–');
  return {value, node: html('div', {title}, html('dt', {}, name), value)};
}

export class Answer {
  constructor(name, how) {
    this.tokens = [];
    this.rounds = [];
    this.text = '';
    this.body = html('div', {class: 'tokens', role: 'group', 'aria-label': `${name}: tokens`});
    this.strip = html('div', {class: 'strip'});
    this.figures = {
      speed: figure('tokens/s', 'tokens per second after the first'),
      alpha: figure('acceptance α', 'accepted draft tokens per verified draft token'),
      tau: figure('per round τ', 'tokens committed per round'),
      tokens: figure('tokens', 'tokens of the answer'),
      rounds: figure('rounds', 'rounds of the answer'),
    };
    this.node = html('article', {class: 'answer', 'aria-label': name, 'aria-busy': 'true'},
      html('p', {class: 'how'}, html('b', {}, name), ` ${how}`), this.body, this.strip,
      html('dl', {class: 'figures'}, ...Object.values(this.figures).map((f) => f.node)));
    this.draw = oncePerFrame(() => this.drawNow());
    this.listen();
  }

  // Tab stops once per answer; arrows, Home and End select a token.
  listen() {
    const token = (e) => this.tokens[e.target.dataset?.at];
    this.body.addEventListener('pointerover', (e) => token(e) && this.show(token(e), e.target));
    this.body.addEventListener('pointerout', () => this.hide());
    this.body.addEventListener('focusin', (e) => {
      if (!token(e)) return;
      this.show(token(e), e.target);
      byId('status').textContent = describe(token(e));
    });
    this.body.addEventListener('focusout', () => this.hide());
    this.body.addEventListener('click', (e) => token(e) && this.walkTo(Number(e.target.dataset.at)));
    this.body.addEventListener('keydown', (e) => {
      const at = Number(e.target.dataset.at), last = this.tokens.length - 1;
      const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last}[e.key];
      if (to === undefined) return;
      e.preventDefault();
      this.walkTo(Math.max(0, Math.min(last, to)));
    });
  }

  // Shows the card of the token, and marks its round in the text.
  show(token, at) {
    for (const e of this.body.querySelectorAll(`[data-round="${token.round}"]`)) e.classList.add('shown');
    showCard(token, at);
  }

  hide() {
    for (const e of this.body.querySelectorAll('.shown')) e.classList.remove('shown');
    hideCard();
  }

  walkTo(at) {
    this.body.querySelector('[tabindex="0"]')?.setAttribute('tabindex', '-1');
    const to = this.body.querySelector(`[data-at="${at}"]`);
    to.setAttribute('tabindex', '0');
    to.focus();
  }

  addToken(token) {
    const at = this.tokens.push(token) - 1;
    if (this.rounds.at(-1)?.number !== token.round)
      this.rounds.push({number: token.round, drafted: token.drafted, accepted: 0, own: null});
    const round = this.rounds.at(-1);
    if (token.origin === 'accepted') round.accepted++;
    else round.own = token.origin;
    this.body.append(html('span', {class: token.isThought ? 'token thought' : 'token', tabindex: at ? '-1' : '0', 'data-at': at,
      'data-origin': token.origin, 'data-round': token.round, 'data-break': /^\s*\n\s*$/.test(token.text)}, token.text || '◦'));
  }

  // A chunk of the stream.
  take(chunk) {
    const [choice] = chunk.choices;
    if (chunk.usage) this.end(chunk);
    if (!choice) return;
    const {content = '', reasoning_content: thought = ''} = choice.delta;
    this.text += content;
    this.startedMs ??= performance.now();
    if (chunk.tandem) this.addToken(tokenOf(chunk, thought, content));
    else this.body.append(thought + content); // held back until the end
    this.draw();
  }

  end(chunk) {
    this.speed = chunk.timings.predicted_per_second;
    this.seed = chunk.metrics.seed;
    this.complete = true;
    this.draw();
  }

  // The answer has ended. problem: a sentence, if it failed.
  close(problem) {
    this.node.removeAttribute('aria-busy');
    if (problem) this.node.append(html('p', {class: 'problem', role: 'alert'}, problem));
    this.draw();
  }

  get drafted() {
    return this.rounds.reduce((sum, r) => sum + r.drafted, 0);
  }

  get accepted() {
    return this.rounds.reduce((sum, r) => sum + r.accepted, 0);
  }

  drawNow() {
    const n = this.tokens.length, {speed, alpha, tau, tokens, rounds} = this.figures;
    const seconds = (performance.now() - this.startedMs) / 1000;
    if (this.node.hasAttribute('aria-busy')) this.speed = n > 1 ? (n - 1) / seconds : null;
    speed.value.textContent = number(this.speed, 0);
    alpha.value.textContent = this.drafted ? number(this.accepted / this.drafted) : '–';
    tau.value.textContent = n ? number(n / this.rounds.length) : '–';
    tokens.value.textContent = n;
    rounds.value.textContent = this.rounds.length;
    this.strip.replaceChildren(this.picture());
  }

  picture() {
    const rows = Math.max(1, ...this.rounds.map((r) => Math.max(r.drafted, r.accepted) + 1));
    const height = rows * CELL, width = Math.max(1, this.rounds.length) * CELL;
    const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: 'none', role: 'img',
      'aria-label': `${this.rounds.length} rounds, ${this.accepted} of ${this.drafted} draft tokens accepted`},
      svg('title', {}, 'A column for each round: accepted draft tokens, the target’s token, rejected draft tokens'));
    this.rounds.forEach((round, i) => picture.append(...column(round, i * CELL, height)));
    return picture;
  }
}
