"use strict";
// Looks at the page it is in; tests read what it leaves in `data-audit`.

function channels(colour) {
  const parts = colour.match(/[\d.]+/g).map(Number);
  return { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
}

function luminance(rgb) {
  const [red, green, blue] = rgb.map((value) => {
    const share = value / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

function behind(element) {
  for (let each = element; each; each = each.parentElement) {
    const { rgb, alpha } = channels(getComputedStyle(each).backgroundColor);
    if (alpha === 1) return rgb;
  }
  return [255, 255, 255];
}

const all = [...document.querySelectorAll("*")];
const texts = all.filter((element) =>
  [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim())
  && element.getClientRects().length > 0 && !["SCRIPT", "STYLE", "TITLE", "title"].includes(element.tagName)
  && !element.closest(".skip"));
const faint = texts.map((element) => {
  const style = getComputedStyle(element);
  const ink = channels(element instanceof SVGElement ? style.fill : style.color).rgb;
  return [contrast(ink, behind(element)), element.textContent.trim().slice(0, 40)];
}).filter(([ratio]) => ratio < 4.5);

const marks = ["fetch", "prep", "transport", "trainer"].map((cause) => {
  const mark = document.querySelector(`.cause-${cause}`);
  return [cause, contrast(channels(getComputedStyle(mark).fill).rgb, behind(mark))];
});

const drawings = [...document.querySelectorAll('svg[role="img"]')];
const cut = [];
for (const drawing of drawings) {
  const box = drawing.getBoundingClientRect();
  for (const text of drawing.querySelectorAll("text")) {
    const { left, right, top, bottom } = text.getBoundingClientRect();
    if (left < box.left - 1 || right > box.right + 1 || top < box.top - 1 || bottom > box.bottom + 1) cut.push(text.textContent);
  }
}
const overlapping = [];
for (const drawing of drawings) {
  const boxes = [...drawing.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  boxes.forEach(([one, a], index) => boxes.slice(index + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 3) overlapping.push(`${one} | ${other}`);
  }));
}

const scrolling = all.filter((element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX));
const ids = all.map((element) => element.id).filter(Boolean);
document.documentElement.dataset.audit = JSON.stringify({
  title: document.title,
  language: document.documentElement.lang,
  ground: getComputedStyle(document.body).backgroundColor,
  headings: [...document.querySelectorAll("h1, h2, h3")].map((heading) => Number(heading.tagName[1])),
  sections: [...document.querySelectorAll("section")].map((section) => section.id),
  drawings: drawings.length,
  unlabelled: drawings.filter((drawing) => !drawing.getAttribute("aria-label")).length,
  figures: document.querySelectorAll("figure").length,
  without_table: [...document.querySelectorAll("figure")].filter((figure) => !figure.querySelector("table tbody tr")).length,
  headless_tables: [...document.querySelectorAll("table")].filter((table) =>
    !table.caption || !table.querySelector('th[scope="col"]') || !table.querySelector('th[scope="row"]')).length,
  repeated_ids: ids.filter((id, index) => ids.indexOf(id) !== index),
  dangling: [...document.querySelectorAll('a[href^="#"]')].filter((a) => !document.getElementById(a.hash.slice(1))).length,
  outward: [...document.querySelectorAll("[src], link, a:not([href^='#']), iframe, object, embed, img")].length,
  loaded: performance.getEntriesByType("resource").map((entry) => entry.name),
  scripts: document.scripts.length - 1,
  handlers: all.filter((element) => [...element.attributes].some((each) => each.name.startsWith("on"))).length,
  unreachable: scrolling.filter((element) => element.tabIndex < 0).length,
  wider_than_window: document.documentElement.scrollWidth > window.innerWidth,
  height: document.documentElement.scrollHeight,
  faint, marks, cut, overlapping,
});
