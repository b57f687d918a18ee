"use strict";
// Draws /openapi.json. Everything from the document goes in as text, never as markup.

const methods = ["post", "get", "put", "patch", "delete"];

function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

function resolve(doc, schema) {
  for (let i = 0; schema && schema.$ref && i < 10; i++) {
    schema = schema.$ref.split("/").slice(1).reduce((at, key) => at && at[key], doc);
  }
  return schema || {};
}

function typeName(doc, schema) {
  const s = resolve(doc, schema);
  let types = Array.isArray(s.type) ? s.type.filter((t) => t !== "null") : [s.type || "any"];
  if (types[0] === "array") return "array of " + typeName(doc, s.items || {});
  let name = types.join(" or ");
  if (s.format) name += " (" + s.format + ")";
  return name;
}

function details(s, description) {
  const parts = [];
  if (description || s.description) parts.push(description || s.description);
  if (s.enum) parts.push("One of: " + s.enum.join(", ") + ".");
  if (s.default !== undefined) parts.push("Default: " + JSON.stringify(s.default) + ".");
  const ranges = [["minimum", "At least", ""], ["maximum", "At most", ""], ["minLength", "At least", " characters"], ["maxLength", "At most", " characters"], ["maxItems", "At most", " items"]];
  for (const [key, words, unit] of ranges) if (s[key] !== undefined) parts.push(words + " " + s[key] + unit + ".");
  return parts.join(" ");
}

function fields(doc, schema, prefix, depth, rows) {
  const s = resolve(doc, schema);
  const required = new Set(s.required || []);
  for (const [name, prop] of Object.entries(s.properties || {})) {
    const p = resolve(doc, prop);
    const full = prefix + name;
    rows.push(el("tr", {},
      el("td", { class: required.has(name) ? "required" : "", text: full }),
      el("td", { text: typeName(doc, prop) }),
      el("td", { text: details(p, prop.description) })));
    const inner = p.type === "array" || (Array.isArray(p.type) && p.type.includes("array")) ? resolve(doc, p.items || {}) : p;
    if (inner.properties && depth < 4) fields(doc, inner, full + (inner === p ? "." : "[]."), depth + 1, rows);
  }
  return rows;
}

function table(doc, schema) {
  const rows = fields(doc, schema, "", 0, []);
  return rows.length ? el("table", {}, el("tbody", {}, ...rows)) : el("p", { text: typeName(doc, schema) });
}

function example(doc, schema, depth = 0) {
  const s = resolve(doc, schema);
  if (s.examples && s.examples.length) return s.examples[0];
  if (s.default !== undefined) return s.default;
  if (s.enum) return s.enum[0];
  const type = Array.isArray(s.type) ? s.type[0] : s.type;
  if (type === "object" && depth < 4) {
    const out = {};
    for (const name of s.required || []) if (s.properties && s.properties[name]) out[name] = example(doc, s.properties[name], depth + 1);
    return out;
  }
  return { string: "…", integer: 1, number: 1, boolean: true, array: [] }[type] ?? null;
}

function curl(doc, method, path, op, body) {
  const admin = (op.security || []).some((s) => "adminKey" in s);
  const lines = ["curl -s" + (method === "get" ? "" : " -X " + method.toUpperCase()) + " '" + location.origin + path + "'"];
  if (op.security) lines.push("  -H \"Authorization: Bearer $" + (admin ? "WAFLEET_ADMIN_KEY" : "WAFLEET_KEY") + "\"");
  if (body) {
    lines.push("  -H 'Content-Type: application/json'");
    lines.push("  -d '" + JSON.stringify(example(doc, body)) + "'");
  }
  return lines.join(" \\\n");
}

function operation(doc, method, path, op) {
  const section = el("section", { id: op.operationId },
    el("h3", { text: op.summary || op.operationId }),
    el("p", { class: "path" }, el("span", { class: "method " + method, text: method.toUpperCase() }), path));
  const key = (op.security || []).map((s) => Object.keys(s)[0])[0];
  if (key) section.append(el("p", { class: "key", text: key === "adminKey" ? "Admin key" : "Organization key" }));
  if (op.description) section.append(el("p", { text: op.description }));
  const params = op.parameters || [];
  if (params.length) {
    section.append(el("h4", { text: "Parameters" }), el("table", {}, el("tbody", {}, ...params.map((p) => {
      const s = resolve(doc, p.schema);
      return el("tr", {},
        el("td", { class: p.required ? "required" : "", text: p.name }),
        el("td", { text: p.in + ", " + typeName(doc, p.schema) }),
        el("td", { text: details(s, p.description) }));
    }))));
  }
  const body = op.requestBody && op.requestBody.content && op.requestBody.content["application/json"];
  if (body) section.append(el("h4", { text: "Body" }), table(doc, body.schema));
  for (const [status, response] of Object.entries(op.responses || {})) {
    if (status === "default") continue;
    const json = response.content && response.content["application/json"];
    const other = Object.keys(response.content || {}).filter((t) => t !== "application/json");
    section.append(el("h4", { text: status + " " + (response.description || "") + (other.length ? " (also " + other.join(", ") + ")" : "") }));
    if (json) section.append(table(doc, json.schema));
  }
  section.append(el("h4", { text: "Try it" }), el("pre", { text: curl(doc, method, path, op, body && body.schema) }));
  return section;
}

async function draw() {
  const about = document.getElementById("about");
  let doc;
  try {
    const answer = await fetch("/openapi.json");
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    doc = await answer.json();
  } catch (err) {
    about.textContent = "/openapi.json can't be read: " + err.message;
    return;
  }
  about.textContent = doc.info.description;
  const groups = new Map();
  for (const [path, item] of Object.entries(doc.paths)) {
    for (const method of methods) {
      const op = item[method];
      if (!op) continue;
      const tag = (op.tags || ["Other"])[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push([method, path, op]);
    }
  }
  const index = document.getElementById("index");
  const main = document.getElementById("operations");
  const wanted = (doc.tags || []).map((t) => t.name).filter((t) => groups.has(t));
  for (const tag of [...wanted, ...[...groups.keys()].filter((t) => !wanted.includes(t))]) {
    index.append(el("h2", { text: tag }));
    for (const [method, path, op] of groups.get(tag)) {
      index.append(el("a", { href: "#" + op.operationId, text: op.summary || op.operationId }));
      main.append(operation(doc, method, path, op));
    }
  }
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

draw();
