// Live routing: what /v1/traffic/events sends, drawn as it comes.
"use strict";

const AGAIN = 3000;

function draw(found) {
  say("state", `live, generation ${found.generation ?? "none"}`, "good");
  say("texts", `${found.texts} texts in the last ${found.window} seconds`);
  at("traffic").replaceChildren(...found.experts.map(trafficRow));
}

function trafficRow(expert) {
  const row = element("tr", null);
  const bar = element("td", null, { class: "bars" });
  bar.append(track(expert.share));
  const time = expert.seconds === null ? "–" : `${(1000 * expert.seconds).toFixed(1)}\u00a0ms`;
  row.append(
    element("th", expert.expert, { scope: "row" }),
    cell("share of texts", percent(expert.share), { class: "number" }),
    bar,
    cell("mean weight", expert.weight.toFixed(3), { class: "number" }),
    cell("declined", percent(expert.declined), { class: "number" }),
    cell("mean time", time, { class: "number" }),
  );
  return row;
}

function follow() {
  const source = new EventSource(`v1/traffic/events${location.search}`);
  source.addEventListener("traffic", (event) => draw(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    source.close();
    say("state", "Not reachable", "bad");
    setTimeout(follow, AGAIN);
  });
}

follow();
