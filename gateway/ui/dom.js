// dom.js - helpers to create and find elements.

// attributes: strings and numbers are values, true is an attribute without a value, others are omitted.
function fill(e, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) e.setAttribute(name, '');
    else if (value !== false && value !== undefined && value !== null) e.setAttribute(name, value);
  }
  e.append(...children.filter((c) => c !== null));
  return e;
}

export const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

export const byId = (id) => document.getElementById(id);

// Returns a function that runs fn once in the next frame, also if it is called several times.
export function oncePerFrame(fn) {
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      fn();
    });
  };
}

const spaces = {' ': '␣', '\n': '↵', '\t': '⇥'};
// The text of a token with its outer blanks made visible.
export const visible = (text) => (text ?? '').replace(/^\s|\s$/g, (c) => spaces[c] ?? c) || '(no text)';

export function number(value, digits = 2) {
  return value === null || value === undefined || Number.isNaN(value) ? '–' : value.toFixed(digits);
}
