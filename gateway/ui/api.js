// api.js - the two requests of this page: a streaming chat, and /health.

let key = sessionStorage.getItem('tandem.key') ?? '';

export const apiKey = () => key;

export function setApiKey(text) {
  key = text;
  sessionStorage.setItem('tandem.key', text);
}

function headers(more) {
  return key ? {...more, Authorization: `Bearer ${key}`} : more;
}

async function errorText(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `the server answered ${answer.status}`;
  }
}

// Yields the data of each event.
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) if (part.startsWith('data: ')) yield part.slice(6);
  }
}

// Yields the chunks of a chat. Throws an Error with one sentence.
export async function* chat(body, signal) {
  const answer = await fetch('v1/chat/completions', {
    method: 'POST', signal, headers: headers({'Content-Type': 'application/json'}), body: JSON.stringify(body)});
  if (!answer.ok) throw new Error(await errorText(answer));
  for await (const data of eventsOf(answer.body)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
  throw new Error('the answer was cut short');
}

// The report of /health, also if its status is 503.
export async function health() {
  const answer = await fetch('health', {headers: headers({})});
  return answer.json();
}
