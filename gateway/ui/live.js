// live.js - the panel of live statistics: /health every second, and the change since the last report.
import {health} from './api.js';
import {byId, html, number, svg} from './dom.js';

const SAMPLES = 60; // seconds shown
const STEP = 4, HEIGHT = 32;

const sparks = {
  speed: {name: 'tokens/s', title: 'tokens committed per second', digits: 0},
  alpha: {name: 'acceptance α', title: 'accepted draft tokens per verified draft token', digits: 2, most: 1},
  tau: {name: 'per round τ', title: 'tokens committed per sequence and round', digits: 2},
  k: {name: 'drafted k', title: 'draft tokens verified per sequence and round', digits: 2},
};

function addSparks() {
  for (const spark of Object.values(sparks)) {
    spark.values = [];
    spark.value = html('b', {}, '–');
    spark.bars = svg('path', {class: 'bars'});
    spark.picture = svg('svg', {viewBox: `0 0 ${SAMPLES * STEP} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img'}, spark.bars);
    byId('sparks').append(html('div', {class: 'spark', title: spark.title}, html('span', {}, spark.name), spark.picture, spark.value));
  }
}

// A bar for each second that has a value.
function barsOf(values, most) {
  const at = (i) => STEP * (i + SAMPLES - values.length);
  return values.map((v, i) => (v ? `M${at(i)} ${HEIGHT}v${(-(HEIGHT - 2) * v / most).toFixed(1)}h${STEP - 1}V${HEIGHT}z` : '')).join('');
}

function draw(spark, value) {
  spark.values.push(value);
  if (spark.values.length > SAMPLES) spark.values.shift();
  const seen = spark.values.filter((v) => v !== null);
  spark.bars.setAttribute('d', barsOf(spark.values, spark.most ?? Math.max(1, ...seen)));
  spark.value.textContent = number(value ?? seen.at(-1), spark.digits);
  spark.value.classList.toggle('old', value === null);
  spark.picture.setAttribute('aria-label', `${spark.title}, last ${SAMPLES} seconds: now ${number(value, spark.digits)}, ` +
    `highest ${seen.length ? number(Math.max(...seen), spark.digits) : 'unknown'}`);
}

// The statistics of all verifiers, summed.
function sum(report) {
  const up = report.verifiers.filter((v) => v.cache);
  const total = (of) => up.reduce((all, v) => all + of(v), 0);
  return {
    speed: total((v) => v.tokens_per_s), tokens: total((v) => v.generated_tokens),
    running: total((v) => v.running), waiting: total((v) => v.waiting),
    looked: total((v) => v.cache.prompt_tokens), found: total((v) => v.cache.hit_tokens),
    blocks: total((v) => v.cache.blocks_total), used: total((v) => v.cache.blocks_used),
    steps: report.spec_decode.total_steps, drafted: report.spec_decode.total_proposed,
    accepted: report.spec_decode.total_accepted,
  };
}

const share = (part, whole) => (whole > 0 ? part / whole : null);

function drawSparks(now, before) {
  const past = (name) => now[name] - before[name];
  draw(sparks.speed, now.speed);
  draw(sparks.alpha, share(past('accepted'), past('drafted')));
  draw(sparks.tau, share(past('tokens'), past('steps')));
  draw(sparks.k, share(past('drafted'), past('steps')));
}

function drawGauges(now) {
  const percent = (value) => (value === null ? '–' : `${(100 * value).toFixed(0)} %`);
  const rows = [
    ['running', now.running, 'running sequences'],
    ['waiting', now.waiting, 'sequences in the queue'],
    ['cache hits', percent(share(now.found, now.looked)), 'prompt tokens found in the cache, since the start'],
    ['KV in use', percent(share(now.used, now.blocks)), 'KV blocks held by running sequences'],
  ];
  byId('gauges').replaceChildren(...rows.map(([name, value, title]) =>
    html('div', {title}, html('dt', {}, name), html('dd', {}, `${value}`))));
}

// ---- t(M) ----

const CURVE = {width: 280, height: 120, left: 30, bottom: 20, top: 8, right: 8};

function curveScales(points) {
  const {width, height, left, bottom, top, right} = CURVE;
  const most = Math.max(...points.map((p) => p.seconds));
  const last = Math.log2(points.at(-1).rows);
  return {
    most,
    x: (rows) => left + (width - left - right) * Math.log2(rows) / last,
    y: (seconds) => height - bottom - (height - bottom - top) * seconds / most,
  };
}

function drawCurve(points) {
  const {width, height, left, bottom, right} = CURVE;
  const {most, x, y} = curveScales(points);
  const text = (at, up, words, anchor) => svg('text', {x: at, y: up, 'text-anchor': anchor}, words);
  const dots = points.map((p) => svg('circle', {cx: x(p.rows), cy: y(p.seconds), r: 2.2},
    svg('title', {}, `${p.rows} rows: ${(1000 * p.seconds).toFixed(2)} ms`)));
  const ticks = [1, 2, 4, 8, 16, 32, 64].filter((rows) => rows <= points.at(-1).rows);
  byId('curve').replaceChildren(svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `Time of a pass: ${points.filter((p) => ticks.includes(p.rows))
      .map((p) => `${(1000 * p.seconds).toFixed(2)} ms for ${p.rows}`).join(', ')} rows`},
  svg('path', {class: 'axis', d: `M${left} ${y(most)}V${y(0)}H${width - right}`}),
  text(left - 5, y(most) + 4, number(1000 * most, 1), 'end'), text(left - 5, y(0) + 1, '0', 'end'),
  ...ticks.map((rows) => text(x(rows), height - bottom + 14, `${rows}`, 'middle')),
  svg('polyline', {points: points.map((p) => `${x(p.rows).toFixed(1)},${y(p.seconds).toFixed(1)}`).join(' ')}), ...dots));
}

// Calls onReport with each report; null: the gateway cannot be reached.
export function startLive(onReport) {
  let before = null;
  addSparks();
  async function update() {
    const report = document.hidden ? undefined : await health().catch(() => null);
    setTimeout(update, 1000);
    if (report === undefined) return;
    onReport(report);
    const now = report ? sum(report) : null;
    if (now && before) drawSparks(now, before);
    if (now) drawGauges(now);
    const points = report?.verifiers.find((v) => v.pass_times?.length)?.pass_times;
    if (points) drawCurve(points);
    before = now;
  }
  update();
}
