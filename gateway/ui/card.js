// card.js - a card with the details of a token, shown while the pointer or focus is on the token.
import {byId, html, visible} from './dom.js';

const origins = {
  accepted: 'accepted: a draft token that was accepted',
  correction: 'correction: the target’s token, the draft differed',
  bonus: 'bonus: the target’s token after a fully accepted draft',
  target: 'target: the target’s token, no draft',
};

const percent = (logprob) => {
  const p = 100 * Math.exp(logprob);
  return p < 0.1 ? '< 0.1 %' : `${p.toFixed(1)} %`;
};

function draftOf(token) {
  if (!token.drafted) return 'nothing drafted';
  return `${token.drafted} drafted${token.proposer ? ` by ${token.proposer}` : ''}`;
}

export function describe(token) {
  const probability = token.logprob === undefined ? '' : `, probability ${percent(token.logprob)}`;
  return `“${visible(token.text || token.own)}”, ${origins[token.origin]}, round ${token.round}, ${draftOf(token)}${probability}`;
}

function bar(alternative, token) {
  const chosen = alternative.token === token.own;
  const fill = html('span', {class: 'fill'});
  fill.style.width = `${100 * Math.exp(alternative.logprob)}%`;
  return html('li', {class: chosen ? 'chosen' : ''},
    html('span', {class: 'name'}, visible(alternative.token)),
    html('span', {class: 'bar'}, fill),
    html('span', {class: 'share'}, percent(alternative.logprob)));
}

function content(token) {
  const listed = token.top.some((a) => a.token === token.own);
  const own = {token: token.own, logprob: token.logprob};
  return [
    html('p', {class: 'head'}, html('b', {}, visible(token.text || token.own)), html('span', {}, `id ${token.id}`)),
    html('p', {class: 'origin', 'data-origin': token.origin}, origins[token.origin]),
    html('p', {}, `round ${token.round} · ${draftOf(token)}`),
    token.logprob === undefined ? null : html('ol', {class: 'alternatives'},
      ...token.top.map((a) => bar(a, token)), listed ? null : bar(own, token)),
  ].filter(Boolean);
}

// Places the card below the token, or above if there is no space. On a phone the style puts it at the
// bottom of the screen.
function place(card, at) {
  const box = at.getClientRects()[0] ?? at.getBoundingClientRect();
  const below = box.bottom + 8 + card.offsetHeight <= innerHeight;
  card.style.left = `${Math.max(8, Math.min(box.left, innerWidth - card.offsetWidth - 8))}px`;
  card.style.top = `${below ? box.bottom + 8 : Math.max(8, box.top - 8 - card.offsetHeight)}px`;
}

export function showCard(token, at) {
  const card = byId('card');
  card.replaceChildren(...content(token));
  card.hidden = false;
  place(card, at);
}

export function hideCard() {
  byId('card').hidden = true;
}
