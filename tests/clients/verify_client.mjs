// verify_client.mjs - a client that sends its own drafts over Verify and gets committed tokens back.
//
//   node tests/clients/verify_client.mjs unix:/run/tandem/verifier-default.sock "Once upon a time"
//
// The draft is prompt lookup: it finds the last two tokens earlier in the context and proposes the tokens after them.
// Any draft gives the target's own tokens; a good draft only needs fewer rounds.
import {pathToFileURL} from 'node:url';
import {call, grpc, tandem} from './stack.mjs';

export function lookUp(context, k) {
  const [a, b] = context.slice(-2);
  for (let i = context.length - 3; i >= 0; i--) {
    if (context[i] === a && context[i + 1] === b) return context.slice(i + 2, i + 2 + k);
  }
  return [];
}

// Generates with drafts of `draft(context, k)`. Returns the committed tokens and the statistics.
export async function generateWithDrafts(client, open, prompt, draft = lookUp, k = 5) {
  const stream = client.Verify();
  const context = [...prompt];
  const result = {ids: [], logprobs: [], rounds: 0, drafted: 0, accepted: 0};
  const next = () => {
    const tokens = draft(context, k);
    result.drafted += tokens.length;
    stream.write({draft: {base_len: context.length, tokens}});
  };
  stream.write({open: {...open, tokens: {ids: prompt}}});
  for await (const reply of stream) {
    if (reply.started) {
      result.started = reply.started;
      next();
      continue;
    }
    const {commit} = reply;
    result.rounds++;
    result.accepted += commit.accepted;
    for (const t of commit.run?.tokens ?? []) {
      context.push(t.id);
      result.ids.push(t.id);
      result.logprobs.push(t.logprob);
    }
    if (commit.finished) {
      result.finished = commit.finished;
      stream.end();
    } else {
      next();
    }
  }
  return result;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [address, text] = process.argv.slice(2);
  const client = new tandem.v1.Verifier(address, grpc.credentials.createInsecure());
  const {ids} = await call(client, 'Tokenize', {text: Buffer.from(text), add_bos: true});
  const result = await generateWithDrafts(client, {sampling: {temperature: 0}, max_tokens: 200}, ids);
  const answer = await call(client, 'Detokenize', {ids: result.ids});
  console.log(`${answer.text}\n\n${result.ids.length} tokens in ${result.rounds} rounds, ` +
    `${result.accepted} of ${result.drafted} draft tokens accepted`);
}
