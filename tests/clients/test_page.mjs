// The page at / in a real browser, against the running services.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import {after, before, test} from 'node:test';
import {need, root, slow, Stack, until} from './stack.mjs';

const chromium = '/usr/bin/chromium';
const skip = fs.existsSync(chromium) ? false : `there is no ${chromium}`;
const draftModel = path.join(root, 'models/tales-1m-q8_0.gguf');
const limit = 20000 * slow;
let stack, browser;

before(async () => {
  if (skip) return;
  stack = await Stack.start({model: 'models/tales-11m-q8_0.gguf', proposerArgs: ['--proposer', 'cascade', '--draft-model', draftModel]});
  browser = await need('playwright-core').chromium.launch({executablePath: chromium,
    args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking']});
});
after(async () => {
  await browser?.close();
  await stack?.stop();
});

// Opens the page for fn. Fails if the page logs an error or sends a request to another host.
async function withPage(options, fn) {
  const page = await browser.newPage({viewport: {width: 1280, height: 860}, ...options});
  const complaints = [];
  page.setDefaultTimeout(limit);
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && complaints.push(m.text()));
  page.on('pageerror', (e) => complaints.push(e.message));
  page.on('request', (r) => r.url().startsWith(`${stack.url}/`) || complaints.push(r.url()));
  await page.goto(stack.url);
  await page.locator('#served[data-state=ok]').waitFor(); // it has the first report
  await fn(page, complaints);
  assert.deepEqual(complaints, []);
  await page.close();
}

const message = (page) => page.getByRole('textbox', {name: 'Message'});
const answers = (page) => page.getByRole('article');
const tokens = (answer, origin) => answer.locator(`.tokens .token${origin ? `[data-origin="${origin}"]` : ''}`);
const finished = (page) => page.locator('#send:enabled').waitFor();

async function ask(page, text, settings = {}) {
  for (const [name, value] of Object.entries({Seed: 7, Temperature: 0.7, 'Max tokens': 96, ...settings}))
    await page.getByRole('spinbutton', {name}).fill(`${value}`);
  await message(page).fill(text);
  await page.getByRole('button', {name: 'Send'}).click();
  await finished(page);
}

// Drafts may be late on a busy machine: repeats the question until a draft token is accepted.
async function askUntilAccepted(page, text) {
  await until('a draft token is accepted', async () => {
    await page.getByRole('button', {name: 'New chat'}).click();
    await ask(page, text);
    return (await tokens(answers(page).first(), 'accepted').count()) > 0;
  });
}

test('browsers get the page, others the list of paths', {skip}, async () => {
  const page = await fetch(stack.url, {headers: {Accept: 'text/html,*/*'}});
  assert.equal(page.headers.get('content-type'), 'text/html; charset=utf-8');
  assert.match(page.headers.get('content-security-policy'), /^default-src 'self';/);
  assert.equal(page.headers.get('x-content-type-options'), 'nosniff');
  assert.equal(page.headers.get('vary'), 'Accept');
  const list = await fetch(stack.url);
  assert.equal(list.headers.get('content-type'), 'text/plain; charset=utf-8');
  assert.match(await list.text(), /POST \/v1\/chat\/completions/);
  for (const [name, type] of [['app.js', 'text/javascript; charset=utf-8'], ['style.css', 'text/css; charset=utf-8'],
    ['icon.svg', 'image/svg+xml']]) {
    const file = await fetch(`${stack.url}/ui/${name}`);
    assert.equal(file.status, 200);
    assert.equal(file.headers.get('content-type'), type);
    assert.equal(await file.text(), fs.readFileSync(path.join(root, 'gateway/ui', name), 'utf8'));
  }
  assert.equal((await fetch(`${stack.url}/ui/nothing.js`)).status, 404);
});

test('an answer streams, its tokens show their origin', {skip}, () => withPage({}, async (page) => {
  await askUntilAccepted(page, 'Tell me a story about a cat.');
  const answer = answers(page).first();
  const n = await tokens(answer).count();
  assert.ok(n > 20 && n <= 96, `${n} tokens`);
  assert.ok(await tokens(answer, 'target').count() > 0);
  assert.ok(await tokens(answer, 'correction').count() + await tokens(answer, 'bonus').count() > 0);
  const shown = await answer.getByRole('img').getAttribute('aria-label');
  const [, accepted, drafted] = shown.match(/rounds, (\d+) of (\d+) draft tokens accepted/);
  assert.equal(Number(accepted), await tokens(answer, 'accepted').count());
  assert.ok(Number(drafted) >= Number(accepted));
  assert.match(await answer.locator('dl').innerText(), new RegExp(`tokens\\s+${n}\\b`));
}));

test('a token shows its probability, alternatives, proposer and round', {skip}, () => withPage({}, async (page) => {
  await askUntilAccepted(page, 'Tell me a story about a dog.');
  const accepted = tokens(answers(page).first(), 'accepted').first();
  await accepted.hover();
  const card = page.getByRole('tooltip');
  assert.match(await card.innerText(), /accepted: a draft token that was accepted\s+round \d+ · \d+ drafted by cascade/);
  assert.equal(await card.getByRole('listitem').count(), 5);
  assert.match(await card.locator('.chosen').innerText(), /\d %$/);
  await message(page).hover();
  await card.waitFor({state: 'hidden'});
}));

test('by keyboard: Enter sends, arrows walk through the tokens', {skip}, () => withPage({}, async (page) => {
  assert.ok(await message(page).evaluate((e) => e === document.activeElement));
  await page.keyboard.type('Tell me a story.');
  await page.keyboard.press('Shift+Enter');
  await page.keyboard.type('A short one.');
  await page.keyboard.press('Enter');
  await finished(page);
  assert.equal(await page.locator('.asked').innerText(), 'Tell me a story.\nA short one.');
  await page.keyboard.press('Shift+Tab'); // back from the composer: Tab stops once per answer
  const at = () => page.evaluate(() => document.activeElement.dataset.at);
  assert.equal(await at(), '0');
  await page.keyboard.press('ArrowRight');
  assert.equal(await at(), '1');
  assert.match(await page.getByRole('tooltip').innerText(), /round \d+/);
  assert.match(await page.getByRole('status').innerText(), /, round \d+, .*, probability/);
  await page.keyboard.press('Escape');
  await page.getByRole('tooltip').waitFor({state: 'hidden'});
}));

test('two runs with one seed are identical, with any proposer', {skip}, () => withPage({}, async (page) => {
  await page.getByRole('checkbox', {name: 'Compare two runs'}).check();
  await ask(page, 'Tell me a story about a bird.', {Temperature: 1});
  assert.equal(await answers(page).count(), 2);
  assert.match(await page.locator('.verdict').innerText(), /Identical: \d+ tokens, \d+ bytes/);
  assert.equal(await tokens(answers(page).nth(0)).allInnerTexts().then((t) => t.join('|')),
    await tokens(answers(page).nth(1)).allInnerTexts().then((t) => t.join('|')));
  assert.equal(await tokens(answers(page).nth(1), 'target').count(), await tokens(answers(page).nth(1)).count());
}));

test('two runs with rules that draw differently differ, and the page shows where', {skip}, () => withPage({}, async (page) => {
  await page.getByRole('checkbox', {name: 'Compare two runs'}).check();
  await page.getByRole('group', {name: 'Run A'}).getByRole('combobox', {name: 'Rule'}).selectOption('rejection');
  await until('the runs differ', async () => { // without a draft in time they do not
    await page.getByRole('button', {name: 'New chat'}).click();
    await ask(page, 'Tell me a story about a fish.', {Temperature: 1.5});
    return /Different from token \d+: A has .+, B has .+/.test(await page.locator('.verdict').innerText());
  });
  assert.ok(await page.locator('.differs').count() > 0);
}));

test('Stop and Esc end a run that hangs, and the next one works', {skip}, () => withPage({}, async (page) => {
  for (const stop of [() => page.getByRole('button', {name: 'Stop'}).click(), () => page.keyboard.press('Escape')]) {
    stack.verifier.kill('SIGSTOP');
    try {
      await message(page).fill('Tell me a story.');
      await page.keyboard.press('Enter');
      await page.locator('#stop:enabled').waitFor();
      await stop();
      await page.getByText('Stopped.').last().waitFor();
    } finally {
      stack.verifier.kill('SIGCONT');
    }
    await ask(page, 'Tell me a story.');
    assert.ok(await tokens(answers(page).last()).count() > 20);
  }
}));

test('a refusal of the server is shown with its sentence', {skip}, () => withPage({}, async (page, complaints) => {
  const run = page.getByRole('group', {name: 'Run A'});
  await run.getByRole('combobox', {name: 'Rule'}).selectOption('threshold');
  await run.getByRole('spinbutton', {name: 'parameter'}).fill('0');
  await ask(page, 'Tell me a story.');
  assert.match(await page.getByRole('alert').innerText(), /rule_parameter is 0/);
  assert.match(complaints.pop(), /status of 400/); // the browser's own line
}));

// Fakes a server that streams these deltas, a token each, then an error.
async function play(page, deltas, sentence) {
  const chunks = deltas.map((delta, i) => ({choices: [{index: 0, delta, logprobs: null, finish_reason: null}],
    tandem: {tokens: [{id: i, origin: 'target', round: i + 1, drafted: 0, proposer: ''}]}}));
  const body = [...chunks, {error: {message: sentence}}].map((e) => `data: ${JSON.stringify(e)}\n\n`).join('');
  await page.route('**/v1/chat/completions', (route) => route.fulfill({contentType: 'text/event-stream', body}));
}

test('reasoning is marked, and an error after it is shown', {skip}, () => withPage({}, async (page) => {
  await play(page, [{reasoning_content: 'Hm.'}, {content: ''}, {content: 'Yes'}], 'the verifier is gone');
  await ask(page, 'Is it so?');
  assert.deepEqual(await tokens(answers(page).first()).allInnerTexts(), ['Hm.', '◦', 'Yes']);
  assert.deepEqual(await answers(page).first().locator('.thought').allInnerTexts(), ['Hm.']);
  assert.equal(await page.getByRole('alert').innerText(), 'the verifier is gone');
}));

test('an API key is sent, and stored only for its tab', {skip}, () => withPage({}, async (page) => {
  const sent = [];
  page.on('request', (r) => r.url().endsWith('/chat/completions') && sent.push(r.headers().authorization));
  await page.getByLabel('API key').fill('sk-of-nobody');
  await ask(page, 'Tell me a story.');
  await page.reload();
  await page.locator('#served[data-state=ok]').waitFor();
  await ask(page, 'Tell me a story.');
  assert.deepEqual(sent, ['Bearer sk-of-nobody', 'Bearer sk-of-nobody']);
  assert.deepEqual(await page.evaluate(() => Object.keys(localStorage)), []);
}));

test('live statistics change', {skip}, () => withPage({}, async (page) => {
  await ask(page, 'Tell me a story about the sea.');
  await page.getByRole('img', {name: /Time of a pass: [\d.]+ ms for 1, .* for 64 rows/}).waitFor();
  await page.getByRole('img', {name: /tokens committed per second.*highest [1-9]/}).waitFor();
  await page.getByText(/cache hits\s*\d+ %/).waitFor();
}));

test('everything focusable has a name', {skip}, () => withPage({}, async (page) => {
  await page.getByRole('checkbox', {name: 'Compare two runs'}).check();
  const session = await page.context().newCDPSession(page);
  const {nodes} = await session.send('Accessibility.getFullAXTree');
  const reachable = nodes.filter((n) => !n.ignored && n.role.value !== 'RootWebArea' &&
    n.properties?.some((p) => p.name === 'focusable' && p.value.value));
  assert.ok(reachable.length > 15, `${reachable.length} to reach`);
  assert.deepEqual(reachable.filter((n) => !n.name?.value).map((n) => n.role.value), []);
}));

for (const colorScheme of ['light', 'dark']) {
  for (const width of [1280, 360]) {
    test(`it fits ${width} pixels, ${colorScheme}`, {skip}, () => withPage({colorScheme, viewport: {width, height: 860}}, async (page) => {
      if (width < 400) await page.getByText('Settings', {exact: true}).click(); // folded there
      await page.getByRole('checkbox', {name: 'Compare two runs'}).check();
      await ask(page, 'Tell me a story about a red boat.');
      assert.match(await page.locator('.verdict').innerText(), /Identical/);
      await page.screenshot({path: path.join(root, `build/page-${colorScheme}-${width}.png`), fullPage: true});
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
    }));
  }
}
