"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rounds = data.rounds;
  if (!rounds.length) return;
  const get = (id) => document.getElementById(id);
  const area = get("tree"), tip = get("tip"), slider = get("slider");
  const ROW = 44, PILL = 25, GAP = 32, PAD = 22, LONGEST = 22;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "13px " + getComputedStyle(document.documentElement).getPropertyValue("--mono");
  let current = 0;

  const raw = (token) => (token in data.texts ? data.texts[token] : "<" + token + ">");
  const show = (token) =>
    raw(token).replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍") || "∅";
  const short = (text) => (text.length > LONGEST ? [...text].slice(0, LONGEST - 1).join("") + "…" : text);
  const percent = (p) => (p >= 0.1 ? (100 * p).toFixed(0) : (100 * p).toPrecision(2)) + " %";
  const sum = (object) => Object.values(object).reduce((a, b) => a + b, 0);

  const make = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const html = (name, kind, text) => {
    const node = document.createElement(name);
    if (kind) node.className = kind;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  /* Every node of a round with its children in the order they are drawn, and the target's own token as a leaf
     of the last accepted one. The accepted path comes first, so that it reads as a straight line. */
  function nodesOf(round) {
    const path = new Set(round.accepted);
    const last = round.accepted[round.accepted.length - 1];
    const said = round.emitted[round.emitted.length - 1];
    const nodes = round.tokens.map((token, i) => ({
      i, token, parent: round.parents[i], p: round.p[i], source: round.s[i], children: [], rank: 0,
      kind: i === 0 ? "root" : path.has(i) ? "s" + (round.s[i] % 4) : "rejected", depth: 0,
    }));
    for (const node of nodes.slice(1)) {
      const parent = nodes[node.parent];
      node.rank = parent.children.length;
      node.depth = parent.depth + 1;
      parent.children.push(node);
    }
    const carries = nodes[last].children.find((child) => child.token === said);
    if (carries) {
      carries.kind = "s" + (carries.source % 4);
      carries.final = true;
    } else {
      const own = { i: -1, token: said, parent: last, p: null, source: -1, children: [], kind: "target", depth: nodes[last].depth + 1 };
      nodes[last].children.unshift(own);
      nodes.push(own);
    }
    for (const node of nodes) node.children.sort((a, b) => (a.kind === "rejected") - (b.kind === "rejected"));
    return nodes;
  }

  function place(nodes) {
    const widths = [];
    let rows = 0;
    for (const node of nodes) {
      node.label = short(show(node.token));
      node.width = Math.ceil(pen.measureText(node.label).width) + 20;
      const note = node.i > 0 && node.p !== null ? percent(node.p) : "";
      const rank = node.i > 0 && node.kind !== "rejected" && node.rank > 0 ? `rank ${node.rank}` : "";
      node.note = [note, rank].filter(Boolean).join(" · ");
      const below = pen.measureText(node.note).width * 0.78 - GAP + 12;
      widths[node.depth] = Math.max(widths[node.depth] || 0, node.width, below);
    }
    const starts = widths.map((_, d) => PAD + widths.slice(0, d).reduce((a, b) => a + b + GAP, 0));
    const stack = [[nodes[0], false]];
    while (stack.length) {
      const [node, below] = stack.pop();
      if (below) rows += 1;
      node.x = starts[node.depth];
      node.y = PAD + rows * ROW;
      for (let k = node.children.length - 1; k >= 0; k--) stack.push([node.children[k], k > 0]);
    }
    const d = widths.length - 1;
    return [starts[d] + widths[d] + PAD, PAD + rows * ROW + PILL + PAD];
  }

  function draw(round) {
    const nodes = nodesOf(round), [width, height] = place(nodes);
    const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
    svg.append(make("title", {}, `token tree of round ${round.n}`));
    const edges = make("g", {});
    svg.append(edges);
    for (const node of [...nodes].sort((a, b) => (a.kind !== "rejected") - (b.kind !== "rejected"))) {
      const parent = nodes[node.parent];
      if (parent) edges.append(edge(parent, node));
      svg.append(pill(round, nodes, node));
    }
    area.replaceChildren(svg);
    const reach = nodes.filter((n) => n.kind !== "rejected").reduce((a, n) => Math.max(a, n.x + n.width), 0);
    area.scrollLeft = Math.max(0, reach + 60 - area.clientWidth);
    area.scrollTop = 0;
  }

  function edge(parent, node) {
    const x1 = parent.x + parent.width, y1 = parent.y + PILL / 2, x2 = node.x, y2 = node.y + PILL / 2;
    const bend = node.x - GAP / 2;
    const d = y1 === y2 ? `M${x1} ${y1}H${x2}` : `M${x1} ${y1}H${bend - 8}Q${bend} ${y1} ${bend} ${y1 + 8}V${y2 - 8}Q${bend} ${y2} ${bend + 8} ${y2}H${x2}`;
    const stroke = (1.2 + 2.6 * (node.p === null ? 0.15 : node.p)).toFixed(2);
    return make("path", { class: "edge " + node.kind, d, "stroke-width": stroke });
  }

  function pill(round, nodes, node) {
    const g = make("g", { class: "node " + node.kind, transform: `translate(${node.x} ${node.y})`, tabindex: "0" });
    g.append(make("rect", { width: node.width, height: PILL, rx: 6 }));
    g.append(make("text", { x: node.width / 2, y: 17, "text-anchor": "middle" }, node.label));
    if (node.note) g.append(make("text", { class: "small", x: 3, y: PILL + 11 }, node.note));
    const open = (event) => openTip(nodeTip(round, nodes, node), event.clientX, event.clientY);
    g.addEventListener("mousemove", open);
    g.addEventListener("mouseleave", closeTip);
    g.addEventListener("focus", () => { if (g.matches(":focus-visible")) { const box = g.getBoundingClientRect(); openTip(nodeTip(round, nodes, node), box.right, box.bottom); } });
    g.addEventListener("blur", closeTip);
    return g;
  }

  function list(rows) {
    const dl = html("dl");
    for (const [name, value] of rows) dl.append(html("dt", "", name), html("dd", "", value));
    return dl;
  }

  function nodeTip(round, nodes, node) {
    const rows = [["token", String(node.token)]];
    const fate = node.kind === "root" ? "the last token of the text" : node.kind === "rejected" ? "rejected" : node.kind === "target" ? "the target’s own" : "accepted";
    rows.push(["fate", fate + (node.final ? ", the last of the text" : "")]);
    if (node.i > 0) {
      rows.push(["from", data.sources[node.source]], ["node", `${node.i}, child of ${node.parent}, rank ${node.rank}`]);
      if (node.p !== null) {
        let path = 1;
        for (let at = node; at.i > 0; at = nodes[at.parent]) path *= at.p === null ? NaN : at.p;
        rows.push(["draft says", percent(node.p) + (isNaN(path) ? "" : `, whole path ${percent(path)}`)]);
      }
    }
    rows.push(["position", String(round.context + node.depth)]);
    const parts = [html("b", "", show(node.token)), list(rows)];
    const at = round.accepted.indexOf(node.i);
    if (at >= 0) parts.push(...verdict(round, at));
    return parts;
  }

  /* What the target said after an accepted node. */
  function verdict(round, at) {
    const parts = [], margin = round.margins[at], top = round.top[at] || [];
    if (top.length || margin !== undefined) {
      const sure = margin === undefined || margin === null ? "" : `, margin ${margin.toPrecision(3)}`;
      parts.push(html("p", "head", "the target after it" + sure));
    }
    for (const [token, logit, p] of top.slice(0, 8)) {
      const row = html("div", "top-row" + (token === round.emitted[at] ? " chosen" : ""));
      const bar = html("i");
      bar.style.width = 100 * (p || 0) + "%";
      row.append(html("span", "", show(token)), bar, html("em", "", p === null ? "–" : percent(p)));
      parts.push(row);
    }
    return parts;
  }

  function openTip(parts, x, y) {
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, x + 16 + box.width > innerWidth ? x - box.width - 12 : x + 16) + "px";
    tip.style.top = Math.max(8, Math.min(y + 14, innerHeight - box.height - 8)) + "px";
  }
  const closeTip = () => { tip.hidden = true; };

  function badge(text, bad) {
    return html("span", "badge" + (bad ? " bad" : ""), text);
  }

  function select(index, reveal) {
    current = Math.min(rounds.length - 1, Math.max(0, index));
    const round = rounds[current];
    draw(round);
    slider.value = round.n;
    get("round-title").textContent = `Round ${round.n} of ${rounds.length}`;
    get("badges").replaceChildren(
      ...(round.degraded ? [badge("logits were not finite", true)] : []), ...(round.finish ? [badge(round.finish)] : []));
    const drafted = round.tokens.length - 1;
    const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
    const took = round.accepted.length - 1 + (round.accepted.length && nodesOf(round).some((n) => n.final) ? 1 : 0);
    get("round-line").textContent = [
      `position ${round.context}`, drafted ? `${took} of ${count(drafted, "drafted node")} accepted` : "nothing drafted",
      `${count(round.emitted.length, "token")} in one pass of width ${round.width}`, `${sum(round.ms).toPrecision(3)} ms`,
    ].join(" · ");
    for (const mark of document.querySelectorAll("[data-round]")) {
      const n = Number(mark.dataset.round);
      mark.classList.toggle("now", n === round.n);
      if (mark.classList.contains("t")) mark.classList.toggle("later", n > round.n);
    }
    if (reveal) {
      const box = get("text"), token = box.querySelector(".now");
      if (token) box.scrollTop = token.offsetTop - box.offsetTop - box.clientHeight / 3;
    }
    history.replaceState(null, "", "#" + round.n);
  }

  get("back").addEventListener("click", () => select(current - 1, true));
  get("next").addEventListener("click", () => select(current + 1, true));
  slider.addEventListener("input", () => select(slider.value - 1, true));
  addEventListener("keydown", (event) => {
    if (event.target === slider || event.altKey || event.ctrlKey || event.metaKey) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -rounds.length, End: rounds.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    closeTip();
    select(current + steps[event.key], true);
  });
  addEventListener("hashchange", () => select(Number(location.hash.slice(1)) - 1 || 0, true));
  for (const mark of document.querySelectorAll("[data-round]"))
    mark.addEventListener("click", () => select(Number(mark.dataset.round) - 1, !mark.classList.contains("t")));
  for (const token of document.querySelectorAll(".t")) {
    token.addEventListener("mousemove", (event) => {
      const round = rounds[token.dataset.round - 1], at = Number(token.dataset.at);
      const own = token.classList.contains("target");
      const rows = [["round", String(round.n)], ["position", String(round.context + at + 1)], ["came from", own ? "the target" : "a draft"]];
      openTip([html("b", "", show(round.emitted[at])), list(rows), ...verdict(round, at)], event.clientX, event.clientY);
    });
    token.addEventListener("mouseleave", closeTip);
  }
  const asked = Number(location.hash.slice(1));
  /* One height for all rounds, so that stepping does not move the page. */
  const tallest = rounds.reduce((a, round) => Math.max(a, place(nodesOf(round))[1]), 0);
  area.style.height = Math.min(tallest + 14, 480) + "px";
  /* First shown: a tree that branches and was accepted for a while says more than a long chain. */
  const worth = (r) => (new Set(r.parents).size < r.parents.length && r.emitted.length > 2 ? 1000 : 0) + r.emitted.length;
  const best = rounds.reduce((a, r, i) => (worth(r) > worth(rounds[a]) ? i : a), 0);
  select(asked >= 1 ? asked - 1 : best, true);
})();
