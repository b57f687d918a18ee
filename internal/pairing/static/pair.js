"use strict";
// Counts down what the page shows, and takes it away when its time is over: a phone must not hang on an
// old code in a tab that lost its line. Everything else is the server's, over htmx.

let shown = []; // {element, until, number}

function remember() {
  shown = [];
  const now = performance.now();
  for (const el of document.querySelectorAll("[data-seconds]")) {
    shown.push({ until: now + 1000 * Number(el.dataset.seconds), number: el.querySelector("b"), timer: el });
  }
  for (const el of document.querySelectorAll("[data-over-after]")) {
    shown.push({ until: now + 1000 * Number(el.dataset.overAfter), code: el });
  }
}

function tick() {
  const now = performance.now();
  for (const it of shown) {
    const left = Math.max(0, Math.ceil((it.until - now) / 1000));
    if (it.number) it.number.textContent = String(left);
    if (it.timer) it.timer.hidden = left === 0;
    if (it.code) it.code.classList.toggle("past", left === 0);
  }
}

function line(up) {
  const note = document.getElementById("offline");
  if (note) note.hidden = up;
}

document.addEventListener("DOMContentLoaded", () => { remember(); setInterval(tick, 250); });
document.addEventListener("htmx:afterSwap", () => { remember(); tick(); });
document.addEventListener("htmx:sseOpen", () => line(true));
document.addEventListener("htmx:sseMessage", () => line(true));
// A server that ends the line and is called again within a second is no news.
let lost;
document.addEventListener("htmx:sseError", () => { clearTimeout(lost); lost = setTimeout(() => line(false), 4000); });
for (const back of ["htmx:sseOpen", "htmx:sseClose"]) document.addEventListener(back, () => clearTimeout(lost));
// One press is one request.
document.addEventListener("submit", (e) => {
  for (const b of e.target.querySelectorAll("button")) setTimeout(() => { b.disabled = true; }, 0);
});
window.addEventListener("pageshow", (e) => { if (e.persisted) location.reload(); });
