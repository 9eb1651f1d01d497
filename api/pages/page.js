// Reads openapi.json and shows it: operations to try, and the schemas behind them.
"use strict";

const base = new URL(".", document.baseURI).pathname.replace(/\/$/, "");
let spec;

// Text only ever becomes text nodes: nothing that a server answers can turn into markup.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// What stands beside a reference takes the place of what it points at.
function resolve(node) {
  while (node && node.$ref) {
    const { $ref, ...own } = node;
    node = { ...$ref.slice(2).split("/").reduce((at, part) => at[part], spec), ...own };
  }
  return node;
}

// Text with `code` in it, as the document has it.
function prose(text) {
  const parts = (text || "").split("`");
  return make("span", {}, ...parts.map((part, index) => (index % 2 ? make("code", {}, part) : part)));
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return make("a", { href: `#schema-${name}` }, name);
  }
  if (schema.anyOf) return list(schema.anyOf.map(typeOf), " or ");
  if (schema.type === "array") return make("span", {}, "array of ", typeOf(schema.items));
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  return schema.format ? `${schema.type} (${schema.format})` : schema.type || "any";
}

function list(parts, separator) {
  const span = make("span");
  parts.forEach((part, index) => span.append(index ? separator : "", part));
  return span;
}

function bounds(schema) {
  const names = { minimum: "≥", maximum: "≤", minLength: "length ≥", maxLength: "length ≤",
    maxItems: "at most", pattern: "matches", default: "default" };
  return Object.entries(names)
    .filter(([name]) => schema[name] !== undefined && schema[name] !== null)
    .map(([name, sign]) => `${sign} ${typeof schema[name] === "string" ? schema[name]
      : JSON.stringify(schema[name])}`).join(", ");
}

function describe(description, schema) {
  const parts = [description && prose(description), bounds(schema)].filter(Boolean);
  return list(parts, " · ");
}

function rows(head, body) {
  if (!body.length) return null;
  return make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", {}, text)))),
    make("tbody", {}, ...body.map((cells) =>
      make("tr", {}, ...cells.map((cell) => make("td", {}, cell))))));
}

function parameterTable(operation) {
  const body = (operation.parameters || []).map(resolve).map((parameter) => [
    make("code", {}, parameter.name), parameter.in, typeOf(parameter.schema),
    describe(parameter.description, parameter.schema)]);
  return rows(["Parameter", "In", "Type", ""], body);
}

function responseTable(operation) {
  const body = Object.entries(operation.responses).map(([status, reference]) => {
    const response = resolve(reference);
    const media = Object.values(response.content || {})[0];
    const headers = Object.keys(response.headers || {}).join(", ");
    return [make("code", { class: status < 400 ? "good" : "bad" }, status), prose(response.description),
      media ? typeOf(media.schema) : "", make("span", { class: "note" }, headers)];
  });
  return rows(["Status", "Meaning", "Body", "Headers"], body);
}

function example(operation) {
  const media = operation.requestBody && operation.requestBody.content["application/json"];
  return media ? JSON.stringify(resolve(media.schema).examples[0], null, 2) : null;
}

function tryForm(method, path, operation) {
  const fields = (operation.parameters || []).map(resolve).map((parameter) => {
    const input = make("input", { spellcheck: "false", placeholder: parameter.example || "" });
    return { parameter, input };
  });
  const sample = example(operation);
  const body = sample && make("textarea", { spellcheck: "false", "aria-label": "Body" });
  if (body) body.value = sample;
  const output = make("div", { "aria-live": "polite" });
  const form = make("form", { class: "try" },
    ...fields.map(({ parameter, input }) => make("label", {}, parameter.name, input)),
    body, make("div", {}, make("button", { type: "submit" }, "Send")), output);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(method, path, fields, body, output);
  });
  return form;
}

async function send(method, path, fields, body, output) {
  const headers = {};
  const query = new URLSearchParams();
  let address = path;
  for (const { parameter, input } of fields) {
    const value = input.value.trim();
    if (parameter.in === "path") {
      address = address.replace(`{${parameter.name}}`, encodeURIComponent(value || "-"));
    } else if (value && parameter.in === "header") {
      headers[parameter.name] = value;
    } else if (value) {
      const repeated = parameter.schema.type === "array";
      for (const one of repeated ? value.split(/[ ,]+/) : [value]) query.append(parameter.name, one);
    }
  }
  const key = document.getElementById("key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const url = base + address + (query.size ? `?${query}` : "");
  output.replaceChildren("Sending…");
  try {
    const response = await fetch(url, { method, headers, body: body ? body.value : undefined });
    const text = await response.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: as it is */ }
    const heads = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    output.replaceChildren(
      make("p", { class: response.ok ? "good" : "bad" },
        `${response.status} ${response.statusText} · ${method} ${url}`),
      make("pre", {}, heads), make("pre", {}, shown || "(no body)"));
  } catch (error) {
    output.replaceChildren(make("p", { class: "bad" }, `No answer: ${error.message}`));
  }
}

function operationCard(method, path, operation) {
  const sample = example(operation);
  return make("details", { class: "operation", id: operation.operationId },
    make("summary", {}, make("span", { class: "method" }, method),
      make("span", { class: "path" }, path), make("span", { class: "note" }, prose(operation.summary))),
    make("div", { class: "inside" },
      operation.description && make("p", { class: "note" }, prose(operation.description)),
      parameterTable(operation) && make("h3", {}, "Parameters"), parameterTable(operation),
      sample && make("h3", {}, "Example body"), sample && make("pre", {}, sample),
      make("h3", {}, "Answers"), responseTable(operation),
      make("h3", {}, "Try it"), tryForm(method, path, operation)));
}

function schemaCard(name, schema) {
  const required = new Set(schema.required || []);
  const body = Object.entries(schema.properties || {}).map(([field, property]) => [
    make("code", {}, field + (required.has(field) ? " *" : "")), typeOf(property),
    describe(property.description, property)]);
  return make("section", { class: "schema", id: `schema-${name}` },
    make("h3", {}, name), schema.description && make("p", { class: "note" }, prose(schema.description)),
    schema.enum && make("p", {}, schema.enum.join(" · ")), rows(["Field", "Type", ""], body));
}

async function show() {
  const content = document.getElementById("content");
  const response = await fetch(`${base}/openapi.json`);
  if (!response.ok) {
    content.replaceChildren(`openapi.json answered ${response.status}`);
    return;
  }
  spec = await response.json();
  document.getElementById("summary").textContent = spec.info.summary;
  const index = document.getElementById("index");
  const cards = [make("h2", {}, "Operations")];
  for (const [path, item] of Object.entries(spec.paths)) {
    for (const [verb, operation] of Object.entries(item)) {
      const method = verb.toUpperCase();
      const card = operationCard(method, path, operation);
      const link = make("a", { href: `#${operation.operationId}` },
        make("span", { class: "method" }, `${method} `), path);
      link.addEventListener("click", () => { card.open = true; });
      index.append(link);
      cards.push(card);
    }
  }
  cards.push(make("h2", {}, "Schemas"));
  for (const [name, schema] of Object.entries(spec.components.schemas)) {
    cards.push(schemaCard(name, schema));
    index.append(make("a", { href: `#schema-${name}` }, name));
  }
  content.replaceChildren(...cards);
  content.querySelector("details").open = true;
}

show().catch((error) => {
  document.getElementById("content").replaceChildren(`The document cannot be shown: ${error.message}`);
});
