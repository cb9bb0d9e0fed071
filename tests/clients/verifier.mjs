// verifier.mjs - a fake verifier. Its answer is the text after `Say: ` in the prompt, a few characters in each token.
// The answer `stall` never ends.
import {grpc, tandem} from './stack.mjs';

const pieces = (text) => [...text].reduce((all, c, i) => (i % 3 ? (all[all.length - 1] += c) : all.push(c), all), []);

export class Verifier {
  // template: the chat template, from which the gateway recognises the format of the model.
  static async start(address, name, template) {
    const v = new Verifier();
    v.address = address;
    v.server = new grpc.Server();
    v.server.addService(tandem.v1.Verifier.service, {
      GetModel: (call, done) => done(null, {state: 'READY', progress: 1, name: Buffer.from(name), protocol: 1,
        context_length: 4096, chat_template: Buffer.from(template), fingerprint: Buffer.from('f')}),
      Generate: (call) => v.generate(call),
    });
    await new Promise((done, failed) => v.server.bindAsync(address, grpc.ServerCredentials.createInsecure(),
      (e) => (e ? failed(e) : done())));
    return v;
  }

  generate(call) {
    this.request = call.request;
    const text = call.request.text.toString().match(/Say: ([^]*?)(<think>\n?)?$/)[1];
    const tokens = pieces(text);
    const all = Math.min(tokens.length, call.request.has_max_tokens ? call.request.max_tokens : Infinity);
    call.write({choice: 0, started: {prompt_tokens: 7, seed: '1'}});
    for (const t of tokens.slice(0, all))
      call.write({choice: 0, run: {tokens: [{id: 1, text: Buffer.from(t), bytes: Buffer.from(t), logprob: -1,
        top: call.request.top_logprobs ? [{token: 1, logprob: -1, text: Buffer.from(t)}] : []}], round: 1}});
    if (text === 'stall') return; // never ends
    call.write({choice: 0, finished: {reason: all < tokens.length ? 'FINISH_REASON_LENGTH' : 'FINISH_REASON_STOP',
      completion_tokens: all}});
    call.end();
  }

  stop() {
    this.server.forceShutdown();
  }
}
