"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = { id: "var(--id)", near: "var(--near)", far: "var(--far)" };
  const W = 480, H = 220, LEFT = 34, BOTTOM = 34, TOP = 8;

  const unpack = (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Float32Array(bytes.buffer);
  };
  const groupOf = (role) => (role === "test" ? "id" : role.split("/")[0]);
  const nameOf = (role) => (role === "test" ? "ID" : role.slice(role.indexOf("/") + 1));
  // How many of the sorted values are below t.
  const below = (values, t) => {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < t) low = middle + 1; else high = middle;
    }
    return low;
  };
  const percent = (share) => (100 * share).toFixed(2);
  const make = (tag, attributes = {}, parent = null, text = null) => {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const element = (tag, attributes = {}, parent = null, text = null) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const pool = (parts) => {
    const all = new Float32Array(parts.reduce((n, part) => n + part.length, 0));
    let at = 0;
    for (const part of parts) { all.set(part, at); at += part.length; }
    return all.sort();
  };

  const chosen = { score: data.scores[0], thresholds: [] };
  const cache = new Map();
  const scoresOf = (arm, score) => {
    const key = `${arm}/${score}`;
    if (!cache.has(key)) cache.set(key, data.arms[arm].scores[score].map(unpack));
    return cache.get(key);
  };

  // --- the distributions, a panel for each arm
  const panels = data.arms.map((arm, index) => {
    const panel = element("div", { class: "panel" }, document.getElementById("panels"));
    element("h3", {}, panel, arm.name);
    const chart = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Scores of ${arm.name}` }, panel);
    const legend = element("ul", { class: "legend" }, panel);
    const label = element("label", {}, panel, "Threshold ");
    const value = element("output", { class: "threshold" }, label);
    const slider = element("input", { type: "range", min: 0, max: 1000, step: 1, "aria-label": `Threshold for ${arm.name}` }, panel);
    const frame = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `What is flagged by ${arm.name}` }, panel);
    const table = element("table", {}, frame);
    const head = element("tr", {}, element("thead", {}, table));
    for (const [text, kind] of [["set", ""], ["flagged, %", "n"], ["passed, %", "n"]]) element("th", { scope: "col", class: kind }, head, text);
    const body = element("tbody", {}, table);
    const rows = data.roles.map((role) => {
      const row = element("tr", { "data-role": role }, body);
      element("th", { scope: "row" }, row, nameOf(role) + (role === "test" ? "" : ` (${groupOf(role)})`));
      return [element("td", { class: "n flagged" }, row), element("td", { class: "n passed" }, row)];
    });
    return { index, arm, chart, legend, value, slider, rows, low: 0, high: 1 };
  });

  const draw = (panel) => {
    const sets = scoresOf(panel.index, chosen.score);
    const groups = {};
    data.roles.forEach((role, i) => (groups[groupOf(role)] ??= []).push(sets[i]));
    const pooled = Object.fromEntries(Object.entries(groups).map(([name, parts]) => [name, pool(parts)]));
    const everything = pool(sets);
    const at = (q) => everything[Math.round(q * (everything.length - 1))];
    let low = at(0.002), high = at(0.998);
    const limit = panel.arm.thresholds[chosen.score];
    low = Math.min(low, limit); high = Math.max(high, limit);
    const room = (high - low || 1) * 0.02;
    panel.low = low - room; panel.high = high + room;
    const bins = 48, counts = {};
    let most = 0;
    for (const [name, values] of Object.entries(pooled)) {
      const shares = new Float64Array(bins);
      for (const v of values) {
        const bin = Math.floor(((v - panel.low) / (panel.high - panel.low)) * bins);
        shares[Math.max(0, Math.min(bins - 1, bin))] += 1 / values.length;
      }
      counts[name] = shares;
      most = Math.max(most, ...shares);
    }
    panel.chart.replaceChildren();
    const x = (v) => LEFT + ((v - panel.low) / (panel.high - panel.low)) * (W - LEFT - 8);
    const y = (share) => H - BOTTOM - (share / most) * (H - BOTTOM - TOP);
    make("line", { class: "axis", x1: LEFT, x2: W - 8, y1: H - BOTTOM, y2: H - BOTTOM }, panel.chart);
    for (let i = 0; i <= 4; i++) {
      const v = panel.low + ((panel.high - panel.low) * i) / 4;
      make("text", { x: x(v), y: H - BOTTOM + 16, "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle" }, panel.chart, Number(v.toPrecision(3)));
    }
    make("text", { x: (W + LEFT) / 2, y: H - 3, "text-anchor": "middle" }, panel.chart, `${chosen.score} score: OOD on the left, ID on the right`);
    make("text", { x: 12, y: H / 2, transform: `rotate(-90 12 ${H / 2})`, "text-anchor": "middle" }, panel.chart, "share");
    panel.legend.replaceChildren();
    for (const [name, shares] of Object.entries(counts)) {
      let path = `M${x(panel.low)},${y(0)}`;
      shares.forEach((share, i) => {
        const left = panel.low + ((panel.high - panel.low) * i) / bins, right = panel.low + ((panel.high - panel.low) * (i + 1)) / bins;
        path += `L${x(left).toFixed(1)},${y(share).toFixed(1)}L${x(right).toFixed(1)},${y(share).toFixed(1)}`;
      });
      path += `L${x(panel.high)},${y(0)}Z`;
      const dash = { id: "none", near: "6 3", far: "2 3" }[name];
      make("path", { d: path, style: `fill:${COLOURS[name]};stroke:${COLOURS[name]}`, "fill-opacity": 0.28, "stroke-width": 1.6, "stroke-dasharray": dash }, panel.chart);
      const item = element("li", {}, panel.legend);
      element("span", { class: "swatch", style: `background:${COLOURS[name]}` }, item);
      item.append({ id: "ID (solid)", near: "near-OOD (dashed)", far: "far-OOD (dotted)" }[name]);
    }
    panel.cursor = make("line", { class: "cursor", y1: TOP, y2: H - BOTTOM }, panel.chart);
    const grab = make("rect", { class: "grab", x: LEFT, y: 0, width: W - LEFT - 8, height: H - BOTTOM }, panel.chart);
    const move = (event) => {
      const box = panel.chart.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width) * W;
      const share = Math.max(0, Math.min(1, (place - LEFT) / (W - LEFT - 8)));
      set(panel, panel.low + share * (panel.high - panel.low));
    };
    grab.addEventListener("pointerdown", (event) => { grab.setPointerCapture(event.pointerId); move(event); });
    grab.addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
    panel.x = x;
  };

  const set = (panel, t) => {
    chosen.thresholds[panel.index] = t;
    const sets = scoresOf(panel.index, chosen.score);
    panel.cursor.setAttribute("x1", panel.x(t));
    panel.cursor.setAttribute("x2", panel.x(t));
    panel.value.textContent = Number(t.toPrecision(5));
    panel.value.dataset.exact = t;
    panel.slider.value = Math.round(((t - panel.low) / (panel.high - panel.low)) * 1000);
    const shares = sets.map((values) => below(values, t) / values.length);
    panel.slider.setAttribute("aria-valuetext", `${panel.value.textContent}: ${percent(shares[0])} % of ID flagged`);
    shares.forEach((share, i) => {
      panel.rows[i][0].textContent = percent(share);
      panel.rows[i][1].textContent = percent(1 - share);
    });
    drawRoc();
  };

  // --- ROC of one set, an arm a line
  const rocSet = document.getElementById("rocset");
  const rocChart = make("svg", { viewBox: "0 0 420 400", role: "img", "aria-label": "ROC" }, document.getElementById("rocchart"));
  const ROC_STYLES = [["var(--near)", "none"], ["var(--id)", "7 3"], ["var(--far)", "2 3"], ["var(--ink)", "9 3 2 3"]];
  const drawRoc = () => {
    const role = Number(rocSet.value);
    const left = 46, top = 10, side = 340;
    const x = (share) => left + share * side, y = (share) => top + (1 - share) * side;
    rocChart.replaceChildren();
    make("rect", { x: left, y: top, width: side, height: side, fill: "none", class: "axis" }, rocChart);
    make("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: "axis", "stroke-dasharray": "1 4" }, rocChart);
    for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
      make("text", { x: x(tick), y: top + side + 16, "text-anchor": "middle" }, rocChart, 100 * tick);
      make("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, rocChart, 100 * tick);
    }
    make("text", { x: left + side / 2, y: top + side + 34, "text-anchor": "middle" }, rocChart, "false alarm rate, %");
    make("text", { x: 12, y: top + side / 2, transform: `rotate(-90 12 ${top + side / 2})`, "text-anchor": "middle" }, rocChart, "detection rate, %");
    panels.forEach((panel, i) => {
      const sets = scoresOf(panel.index, chosen.score), idScores = sets[0], oodScores = sets[role];
      const [colour, dash] = ROC_STYLES[i % ROC_STYLES.length];
      const rates = (t) => [idScores, oodScores].map((scores) => below(scores, t) / scores.length);
      const steps = 300, points = [[0, 0]];
      for (let j = 0; j <= steps; j++) {
        const t = idScores[Math.round((j / steps) * (idScores.length - 1))];
        points.push(rates(t));
      }
      for (let j = 0; j <= steps; j++) {
        const t = oodScores[Math.round((j / steps) * (oodScores.length - 1))];
        points.push(rates(t));
      }
      points.push([1, 1]);
      points.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      const path = points.map(([a, b], j) => `${j ? "L" : "M"}${x(a).toFixed(1)},${y(b).toFixed(1)}`).join("");
      make("path", { d: path, fill: "none", style: `stroke:${colour}`, "stroke-width": 2.2, "stroke-dasharray": dash }, rocChart);
      const t = chosen.thresholds[panel.index];
      if (t !== undefined) {
        const [alarms, detected] = rates(t);
        make("circle", { cx: x(alarms), cy: y(detected), r: 5, style: `fill:${colour}` }, rocChart);
      }
      const place = top + side - 12 - 18 * (panels.length - 1 - i);
      make("line", { x1: left + side - 150, x2: left + side - 125, y1: place - 4, y2: place - 4, style: `stroke:${colour}`, "stroke-width": 2.2, "stroke-dasharray": dash }, rocChart);
      make("text", { x: left + side - 120, y: place }, rocChart, panel.arm.name.length > 20 ? panel.arm.name.slice(0, 19) + "…" : panel.arm.name);
    });
  };

  const redraw = () => panels.forEach((panel) => { draw(panel); set(panel, panel.arm.thresholds[chosen.score]); });
  const choice = document.getElementById("score");
  data.scores.forEach((name) => element("option", { value: name }, choice, name));
  data.roles.forEach((role, i) => { if (i) element("option", { value: i }, rocSet, `${nameOf(role)} (${groupOf(role)})`); });
  choice.addEventListener("change", () => { chosen.score = choice.value; redraw(); });
  rocSet.addEventListener("change", drawRoc);
  document.getElementById("reset").addEventListener("click", () => panels.forEach((panel) => set(panel, panel.arm.thresholds[chosen.score])));
  panels.forEach((panel) => panel.slider.addEventListener("input", () => set(panel, panel.low + (panel.slider.value / 1000) * (panel.high - panel.low))));
  redraw();

  // --- tables that sort
  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = element("button", { type: "button" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up === 1 ? "ascending" : "descending");
        const key = (row) => {
          const cell = row.cells[column], text = cell.dataset.value ?? cell.textContent.trim();
          const number = Number.parseFloat(text.replace("<", ""));
          return head.classList.contains("n") && !Number.isNaN(number) ? number : text;
        };
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => {
          const [p, q] = [key(a), key(b)];
          return up * (typeof p === "number" && typeof q === "number" ? p - q : String(p).localeCompare(String(q)));
        });
        table.tBodies[0].append(...rows);
      });
    });
  });
})();
