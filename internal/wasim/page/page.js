"use strict";
// The page polls the control API; everything it shows is put in as text, never as markup.

const $ = (id) => document.getElementById(id);
let chosen = "";
let logAfter = 0;
const logKept = 300;

function el(tag, props, ...kids) {
  const e = Object.assign(document.createElement(tag), props || {});
  e.append(...kids.filter((k) => k !== null && k !== undefined));
  return e;
}

async function call(method, path, body) {
  const init = { method };
  if (body !== undefined) {
    init.headers = { "Content-Type": "application/json" };
    init.body = JSON.stringify(body);
  }
  const r = await fetch("/sim/" + path, init);
  const out = await r.json();
  if (!r.ok) throw new Error(out.error || r.statusText);
  return out;
}

// attempt shows what failed until the next action works; the regular refresh does not take it away.
async function attempt(f, regular) {
  try {
    await f();
    if (!regular || $("notice").dataset.regular) $("notice").hidden = true;
  } catch (e) {
    if (regular && !$("notice").hidden) return;
    $("notice").textContent = e.message;
    $("notice").dataset.regular = regular ? "yes" : "";
    $("notice").hidden = false;
  }
}

function act(label, f) {
  const b = el("button", { type: "button", className: "small", textContent: label });
  b.addEventListener("click", () => attempt(async () => { await f(); await refresh(); }));
  return b;
}

// fill replaces the children only if something changed, so that focus and scrolling survive.
function fill(list, items, empty) {
  const key = JSON.stringify(items.map((i) => i.key));
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 8;
  list.replaceChildren(...items.map((i) => i.make()));
  if (!items.length) list.append(el("li", { className: "empty", textContent: empty }));
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function showPhones(phones) {
  fill($("phones"), phones.map((p) => ({
    key: [p.pn, p.pushName, p.devices, p.received, p.pn === chosen],
    make: () => {
      const b = el("button", { type: "button" }, p.pushName, el("span", { textContent: p.received + " received" }),
        el("span", { textContent: "+" + p.pn }), el("span", { textContent: p.devices.filter((d) => d.online).length + "/" + p.devices.length + " linked" }));
      b.setAttribute("aria-current", p.pn === chosen);
      b.addEventListener("click", () => { chosen = p.pn; attempt(refresh); });
      return el("li", null, b);
    },
  })), "none yet");
}

function showPhone(p, messages) {
  $("phone").hidden = false;
  $("title").textContent = p.pushName + "  +" + p.pn;
  fill($("devices"), p.devices.map((d) => ({
    key: [p.pn, d],
    make: () => el("li", null, "device " + d.id + (d.online ? " online" : " offline") + (d.pending ? ", " + d.pending + " pending" : ""),
      ...["drop", "replace", "mute", "repeat"].map((a) => act(a, () => call("POST", `sessions/${p.pn}/${d.id}/${a}`))),
      act("unlink", () => call("POST", `phones/${p.pn}/unlink`, { device: d.id }))),
  })), "none");
  fill($("blocked"), p.blocked.map((b) => ({
    key: [p.pn, b],
    make: () => el("li", null, "blocks +" + b, act("unblock", () => call("POST", `phones/${p.pn}/unblock`, { pn: b }))),
  })), "blocks nobody");
  fill($("messages"), messages.map((m, i) => ({
    key: [p.pn, i, m.read],
    make: () => el("li", { className: (m.fromMe ? "mine " : "") + (m.duplicate ? "duplicate" : "") },
      el("small", null, ...[new Date(m.at).toLocaleTimeString(), (m.fromMe ? "to +" : "from +") + m.chat, m.duplicate ? "duplicate" : "", m.read ? "read" : ""]
        .filter(Boolean).map((t) => el("span", { textContent: t })),
        m.fromMe || m.read || m.duplicate ? null : act("read", () => call("POST", `phones/${p.pn}/read`, { id: m.id })),
        m.fromMe || m.duplicate ? null : act("retry", () => call("POST", `phones/${p.pn}/retry`, { id: m.id }))),
      m.text || "(no text)"),
  })), "nothing");
}

function showFaults(faults) {
  fill($("faults"), faults.map((f) => ({
    key: [f],
    make: () => el("li", null, (f.session || "everyone") + " → " + (f.recipient || "everyone") + ": " +
      Object.entries(f.fault).map(([k, v]) => (v === true ? k : k + " " + v)).join(", "),
      act("clear", () => call("PUT", "faults", { session: f.session, recipient: f.recipient, fault: {} }))),
  })), "all goes well");
}

function showLog(entries) {
  const body = $("log");
  for (const e of entries) {
    const note = [e.error ? "error " + e.error : "", e.relayed ? "relayed" : "", e.retry ? "retry " + e.retry : "", e.duplicate ? "duplicate" : "", e.text || ""].filter(Boolean).join(" ");
    const row = el("tr", { className: e.error || e.kind === "ignored" ? "bad" : "" });
    for (const v of [e.seq, new Date(e.at).toLocaleTimeString(), e.dir, e.kind, e.type, e.session ? e.session + ":" + (e.device || 0) : "", e.sender, e.recipient, e.id, e.worker, e.epoch, note]) {
      row.append(el("td", { textContent: v === undefined ? "" : v }));
    }
    body.prepend(row);
  }
  while (body.rows.length > logKept) body.deleteRow(-1);
}

async function refresh() {
  const [{ phones }, { faults }, stats, log] = await Promise.all([
    call("GET", "phones"), call("GET", "faults"), call("GET", "stats"),
    call("GET", logAfter ? "log?after=" + logAfter : "log?tail=" + logKept)]);
  if (log.next > logAfter) {
    logAfter = log.next;
    showLog(log.entries);
  }
  if (!chosen && phones.length) chosen = phones[0].pn;
  showPhones(phones);
  showFaults(faults);
  $("stats").textContent = `${stats.phones} phones, ${stats.online} of ${stats.companions} linked devices online, ${stats.messages} messages, ${stats.pending} pending`;
  const phone = phones.find((p) => p.pn === chosen);
  if (phone) showPhone(phone, (await call("GET", `phones/${phone.pn}/messages`)).messages);
}

function onSubmit(id, f) {
  $(id).addEventListener("submit", (ev) => {
    ev.preventDefault();
    const form = ev.target;
    attempt(async () => {
      await f(Object.fromEntries(new FormData(form)), form);
      await refresh();
    });
  });
}

onSubmit("new-phone", async (v, form) => { chosen = (await call("POST", "phones", v)).pn; form.reset(); });
for (const id of ["scan", "code", "block"]) {
  onSubmit(id, async (v, form) => { await call("POST", `phones/${chosen}/${id}`, v); form.reset(); });
}
onSubmit("send", async (v, form) => { await call("POST", `phones/${chosen}/send`, v); form.elements.text.value = ""; });
onSubmit("fault", async (v) => {
  const flag = ["dropAcks", "refuseDials", "mutePings", "silent"].includes(v.what);
  await call("PUT", "faults", { session: v.session, recipient: v.recipient, fault: { [v.what]: flag ? true : Number(v.value) } });
});

async function loop() {
  await attempt(refresh, true);
  setTimeout(loop, 1000);
}
loop();
