// dom.js - elements in one call.

// attributes: strings and numbers are attributes, true stands alone, others are left out.
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

// fn at the next frame, however often it is asked for until then.
export function oncePerFrame(fn) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      fn();
    });
  };
}

const spaces = {' ': '␣', '\n': '↵', '\t': '⇥'};
// A token's text with its outer blanks visible.
export const visible = (text) => (text ?? '').replace(/^\s|\s$/g, (c) => spaces[c] ?? c) || '(no text)';

export function number(value, digits = 2) {
  return value === null || value === undefined || Number.isNaN(value) ? '–' : value.toFixed(digits);
}
