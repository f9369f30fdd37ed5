// The page: what /v1/models and /v1/generations say, a question, and changes where they are allowed.
// Everything that comes from elsewhere is set as text, never as markup.
"use strict";

const EVERY = 3000;
let shown = "";
let model = null;
let asked = null;  // the id of the model that was chosen, where there are several questions

async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  const body = await answer.json();
  const problem = body.error?.message ?? body.error;  // that of OpenAI's routes is an object
  if (!answer.ok) throw new Error(problem ?? `the server answered ${answer.status}`);
  return body;
}

const post = (path, told, headers = {}) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json", ...headers },
              body: JSON.stringify(told) });

// -- what is served ---------------------------------------------------------------------------

async function refresh() {
  try {
    const models = (await ask("v1/models")).data.filter((m) => m.id === m.root);
    const found = models.find((m) => m.id === asked)
      ?? models.find((m) => m.generation !== null) ?? models[0];
    const generations = await ask(`v1/generations?model=${encodeURIComponent(found.id)}`);
    const now = JSON.stringify([models, generations, found.id]);
    if (now !== shown) {
      drawQuestions(models, found);
      draw(found, generations.data);
    }
    shown = now;
  } catch (error) {
    shown = "";
    say("state", `Not reachable: ${error.message}`, "bad");
  }
}

function draw(found, generations) {
  model = found;
  const focused = document.activeElement?.dataset?.generation;
  const number = model.generation ?? "none";
  say("state", model.ready ? `ready, generation ${number}` : `not ready, generation ${number}`,
      model.ready ? "good" : "bad");
  drawNow(generations);
  drawExperts();
  drawGenerations(generations);
  at("admin").hidden = !model.admin;
  at("rollback").disabled = model.parent === null;
  if (focused) document.querySelector(`button[data-generation="${focused}"]`)?.focus();
}

function drawQuestions(models, found) {
  at("questions").hidden = models.length < 2;
  at("question").replaceChildren(...models.map((m) => {
    const option = element("option", m.question ?? "the home’s own", { value: m.id });
    option.selected = m.id === found.id;
    return option;
  }));
}

function drawNow(generations) {
  const rows = [
    ["generation", model.generation ?? "none"],
    ["parents", ancestors(generations).join(" ← ") || "none"],
    ["backbone", model.backbone ?? "none"],
    ["router", model.router ?? "none"],
  ];
  at("now").replaceChildren(...rows.flatMap(([name, value]) =>
    [element("dt", name), element("dd", String(value))]));
  const left = model.recalled === null ? model.follows?.reason ?? ""
    : `${model.recalled.generation === null ? "No generation is served"
      : `Generation ${model.recalled.generation} was left`}: ${model.recalled.reason}`;
  at("recalled").hidden = left === "";
  say("recalled", left, left && "bad");
  const last = model.candidate;
  at("candidate").hidden = last === null;
  if (last === null) return;
  const published = last.generation === null ? "" : ` as generation ${last.generation}`;
  const reason = last.reason === null ? "" : `: ${last.reason}`;
  say("candidate", `Last change of the environment: ${last.state}${published}${reason}`,
      last.state === "refused" ? "bad" : "");
}

function ancestors(generations) {
  const parents = new Map(generations.map((g) => [g.number, g.parent]));
  const found = [];
  for (let n = model.parent; n !== null && n !== undefined; n = parents.get(n)) found.push(n);
  return found;
}

function drawExperts() {
  const others = model.experts.filter(isElsewhere);
  at("experts").replaceChildren(
    ...model.experts.filter((x) => !isElsewhere(x)).map(expertRow));
  at("elsewhere").hidden = others.length === 0;
  const names = [...new Set(others.map((x) => x.backbone))].sort().join(", ");
  say("elsewhere-title", `${others.length} more for other backbones: ${names}`);
  at("others").replaceChildren(...others.map(otherRow));
}

// What was trained on another backbone is as good as its author made it; it has no place here.
const isElsewhere = (expert) =>
  expert.code === "backbone_mismatch" && expert.backbone !== model.backbone;

function otherRow(expert) {
  const row = element("tr", null);
  row.append(
    element("th", expert.id ?? "unknown", { scope: "row" }),
    cell("package", `${expert.dist} ${expert.version}`),
    cell("backbone", expert.backbone),
  );
  return row;
}

function expertRow(expert) {
  const row = element("tr", null);
  row.append(
    element("th", expert.id ?? "unknown", { scope: "row" }),
    cell("package", `${expert.dist} ${expert.version}`),
    cell("state", expert.state, expert.code ? { class: "bad" } : {}),
    cell("served", expert.serving ? "yes" : "no"),
    cell("reason", [expert.reason, expert.hint].filter(Boolean).join(". ")),
  );
  return row;
}

function drawGenerations(generations) {
  const domains = [...new Set(generations.flatMap((g) => Object.keys(g.accuracy)))].sort();
  const head = ["generation", "parent", "router", ...domains, ...(model.admin ? ["change"] : [])];
  at("generations-head").replaceChildren(
    ...head.map((name) => element("th", name, { scope: "col" })));
  at("generations").replaceChildren(...generations.map((g) => generationRow(g, domains)));
}

function generationRow(generation, domains) {
  const row = element("tr", null, generation.serving ? { class: "serving" } : {});
  const name = generation.serving ? `${generation.number} (served)` : String(generation.number);
  row.append(
    element("th", name, { scope: "row" }),
    cell("parent", generation.parent ?? "none"),
    cell("router", generation.router),
    ...domains.map((d) => cell(d, percent(generation.accuracy[d]), { class: "number" })),
  );
  if (model.admin) row.append(swapCell(generation));
  return row;
}

function swapCell(generation) {
  const made = element("td", null);
  const button = element("button", "Serve", {
    type: "button",
    "data-generation": generation.number,
    "aria-label": `Serve generation ${generation.number}`,
  });
  button.disabled = generation.serving;
  button.addEventListener("click", () => change("admin/swap", generation.number));
  made.append(button);
  return made;
}

// -- a question -------------------------------------------------------------------------------

async function answer(event) {
  event.preventDefault();
  at("ask-problem").textContent = "";
  const tensor = { name: "text", datatype: "BYTES", shape: [1], data: [at("text").value] };
  try {
    const reply = await post(`v2/models/${encodeURIComponent(model.id)}/infer`, { inputs: [tensor] });
    const outputs = new Map(reply.outputs.map((o) => [o.name, o]));
    const sure = outputs.get("probability");
    const [declined] = outputs.get("declined").data;
    at("label").textContent = declined ? "declined" : outputs.get("label").data[0];
    at("sure").textContent = (sure ? `with probability ${sure.data[0].toFixed(3)}, ` : "")
      + `by generation ${reply.model_version}`;
    drawWeights(outputs.get("weights"));
    at("answer").hidden = false;
  } catch (error) {
    at("answer").hidden = true;
    at("ask-problem").textContent = error.message;
  }
}

function drawWeights(weights) {
  const rows = weights.parameters.columns.map((name, n) => [name, weights.data[n]]);
  rows.sort((a, b) => b[1] - a[1]);
  at("weights").replaceChildren(...rows.map(([name, share]) => {
    const row = element("li", null);
    const amount = (Math.round(1000 * share) / 1000 || 0).toFixed(3);  // never -0.000
    row.append(element("span", name), track(share), element("span", amount, { class: "amount" }));
    return row;
  }));
}

// -- changes ----------------------------------------------------------------------------------

async function change(path, generation) {
  at("change").textContent = "";
  at("change-problem").textContent = "";
  const headers = { Authorization: `Bearer ${at("token").value}` };
  try {
    const told = {
      generation, expected_generation: model.generation, question: model.question,
    };
    const done = await post(path, told, headers);
    at("change").textContent = `Generation ${done.generation} is served; before it was `
      + `${done.previous ?? "none"}.`;
  } catch (error) {
    at("change-problem").textContent = error.message;
  }
  await refresh();
}

at("ask").addEventListener("submit", answer);
at("question").addEventListener("change", () => {
  asked = at("question").value;
  at("answer").hidden = true;
  refresh();
});
at("admin").addEventListener("submit", (event) => {
  event.preventDefault();
  change("admin/rollback", null);
});
refresh();
setInterval(refresh, EVERY);
