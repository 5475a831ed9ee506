"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const PLACES = { cross: "cross-attention", encoder: "encoder", decoder: "decoder" };
  const TINY = 1e-6; // float16 has no digit of such a weight

  /** An element with a class and children; strings become text. */
  function make(name, className, ...children) {
    const element = document.createElement(name);
    if (className) element.className = className;
    element.append(...children);
    return element;
  }

  /** Give a select its options, pairs of value and text; keep what was chosen, or choose `first`. */
  function offer(select, options, first = options[0]?.[0]) {
    const before = select.value;
    select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
    select.value = options.some(([value]) => value === before) ? before : first;
  }

  const numbered = (count, label) =>
    Array.from({ length: count }, (_, index) => [String(index), `${label} ${index + 1}`]);

  /** The number that 16 bits stand for in IEEE's binary16; it has no infinities here. */
  function fromHalf(bits) {
    const exponent = (bits >> 10) & 31;
    const digits = bits & 1023;
    const size = exponent ? (1024 + digits) * 2 ** (exponent - 25) : digits * 2 ** -24;
    return bits & 0x8000 ? -size : size;
  }

  function decode(text) {
    const bytes = atob(text);
    return Float64Array.from({ length: bytes.length / 2 }, (_, index) =>
      fromHalf(bytes.charCodeAt(2 * index) | (bytes.charCodeAt(2 * index + 1) << 8)));
  }

  /** A weight for reading: three digits, and nothing reads as 0 that is not. */
  function weightText(weight) {
    if (weight === 0) return "exactly 0";
    if (Math.abs(weight) < TINY) return weight > 0 ? "above 0, below 1e-6" : "below 0, above -1e-6";
    if (Math.abs(weight) < 1e-4) return `about ${weight.toExponential(0)}`;
    return String(Number(weight.toPrecision(3)));
  }

  /** A probability for reading: none reads as 0 or 1 that is not. */
  function probabilityText(p) {
    if (p === 0) return "0";
    if (p >= 0.9995 && p < 1) return ">.999";
    return p >= 0.001 ? p.toFixed(3) : p.toExponential(0);
  }

  const count = (number, one, several) =>
    `${number.toLocaleString("en")} ${number === 1 ? one : several}`;

  // What is chosen.

  const model = () => data.models[Number(at("model").value)];
  const sentence = () => model().sentences[at("sentence").selectedIndex];

  function offerPlaces() {
    const places = Object.keys(PLACES).filter((place) => place in model().places);
    offer(at("place"), places.map((place) => [place, PLACES[place]]));
    offerLayers();
  }

  function offerLayers() {
    const place = model().places[at("place").value];
    if (!place) return;
    const layers = place.kinds.map((kind, index) => [String(index), `${index + 1}: ${kind}`]);
    offer(at("layer"), layers, layers.at(-1)[0]);
    const mean = ["mean", place.heads > 1 ? `mean of ${place.heads} heads` : "the only head"];
    offer(at("head"), place.heads > 1 ? [mean, ...numbered(place.heads, "head")] : [mean], "mean");
  }

  function step(by) {
    at("sentence").selectedIndex += by;
    draw();
  }

  // Attention.

  /** Queries and keys of the chosen place, and the weights of the chosen layer and head. */
  function chosenAttention() {
    const { source, target, attention } = sentence();
    const place = at("place").value;
    const soFar = [target.at(-1), ...target.slice(0, -1)];
    const [queries, keys] =
      { encoder: [source, source], decoder: [target, soFar], cross: [target, source] }[place];
    const all = decode(attention[place]);
    const { heads, sums_to_one: sums } = model().places[place];
    const layer = Number(at("layer").value);
    const size = queries.length * keys.length;
    const ofHead = (head) => all.subarray((layer * heads + head) * size).subarray(0, size);
    const mean = () => {
      const panels = Array.from({ length: heads }, (_, head) => ofHead(head));
      return Float64Array.from({ length: size }, (_, index) =>
        panels.reduce((sum, panel) => sum + panel[index], 0) / heads);
    };
    const head = at("head").value;
    const weights = head === "mean" ? mean() : ofHead(Number(head));
    const isMasked = (query, key) => place === "decoder" && key > query;
    return { queries, keys, weights, isMasked, sumsToOne: sums[layer] };
  }

  function drawAttention() {
    const has = Object.keys(model().places).length > 0;
    at("has-attention").hidden = !has;
    at("no-attention").hidden = has;
    for (const id of ["place", "layer", "head"]) at(id).disabled = !has;
    if (!has) return;
    const { queries, keys, weights, isMasked, sumsToOne } = chosenAttention();
    const largest = weights.reduce((most, weight) => Math.max(most, Math.abs(weight)), 0);
    const top = sumsToOne ? 1 : largest || 1;
    const rows = queries.map((query, row) => {
      const cells = keys.map((key, column) => {
        const weight = weights[row * keys.length + column];
        const [kind, text] = isMasked(row, column)
          ? ["masked", "not visible to the query"]
          : [weight === 0 ? "zero" : weight < 0 ? "weight negative" : "weight", weightText(weight)];
        const cell = make("td", kind);
        cell.setAttribute("role", "gridcell");
        cell.setAttribute("aria-label", `${query} attends to ${key}: ${text}`);
        cell.tabIndex = -1;
        cell.style.setProperty("--share", Math.min(1, Math.abs(weight) / top).toFixed(3));
        return cell;
      });
      const isNull = cells.every((cell) => !cell.classList.contains("weight"))
        && cells.some((cell) => cell.classList.contains("zero"));
      const tags = isNull ? [make("span", "tag", "null")] : [];
      const header = make("th", "", make("span", "query", make("bdi", "", query), ...tags));
      header.scope = "row";
      header.title = query;
      return make("tr", isNull ? "null" : "", header, ...cells);
    });
    const corner = make("td");
    const headers = keys.map((key) => {
      const header = make("th", "", make("bdi", "", key));
      header.scope = "col";
      header.title = key;
      return header;
    });
    const grid = at("grid");
    grid.replaceChildren(
      make("thead", "", make("tr", "", corner, ...headers)), make("tbody", "", ...rows));
    grid.setAttribute("aria-label", "Attention weights: rows are queries, columns are keys");
    rows[0].cells[1].tabIndex = 0;
    at("legend-masked").hidden = at("place").value !== "decoder";
    at("legend-negative").hidden = !weights.some((weight) => weight < 0);
    const what = at("place").value === "encoder" ? "source tokens" : "the tokens to be predicted";
    const nulls = rows.filter((row) => row.className === "null").length;
    at("scale").textContent = `Rows are queries (${what}), columns are keys. Shades go from 0 to ` +
      (sumsToOne ? "1. " : `${weightText(top)}, the largest weight here. `) +
      `${count(nulls, "query attends", "queries attend")} to nothing. ` +
      "Weights are kept with three digits; an exact 0 stays one.";
    at("weight").textContent = "Point at a cell, or go into the grid with Tab, to read its weight.";
  }

  /** Tell the weight of a cell, and mark its row and column. */
  function tell(cell) {
    const grid = at("grid");
    const row = cell.parentElement;
    for (const header of grid.querySelectorAll("th.active")) header.classList.remove("active");
    const column = grid.tHead.rows[0].cells[cell.cellIndex];
    row.cells[0].classList.add("active");
    column.classList.add("active");
    const [query, key] = [row.cells[0], column].map((header) => make("bdi", "", header.title));
    const text = cell.getAttribute("aria-label").split(": ").at(-1);
    const head = at("head").selectedOptions[0].text;
    at("weight").replaceChildren(
      "query ", make("strong", "", query), ", key ", make("strong", "", key),
      ", ", cell.className === "masked" ? "" : "weight ", make("strong", "value", text),
      row.className === "null" ? " (null attention)" : "",
      ` (layer ${Number(at("layer").value) + 1}, ${head})`);
  }

  function onGridKey(event) {
    const cell = event.target.closest("td[role=gridcell]");
    if (!cell) return;
    const rows = at("grid").tBodies[0].rows;
    let row = cell.parentElement.sectionRowIndex;
    let column = cell.cellIndex;
    const last = [rows.length - 1, rows[0].cells.length - 1];
    switch (event.key) {
      case "ArrowUp": row = Math.max(0, row - 1); break;
      case "ArrowDown": row = Math.min(last[0], row + 1); break;
      case "ArrowLeft": column = Math.max(1, column - 1); break;
      case "ArrowRight": column = Math.min(last[1], column + 1); break;
      case "Home": column = 1; if (event.ctrlKey) row = 0; break;
      case "End": column = last[1]; if (event.ctrlKey) row = last[0]; break;
      default: return;
    }
    event.preventDefault();
    cell.tabIndex = -1;
    rows[row].cells[column].tabIndex = 0;
    rows[row].cells[column].focus();
  }

  // Alternatives.

  function remark(entry, position) {
    if (!entry.given) return "";
    if (entry.rank === null) return "given, impossible";
    return entry.rank === position ? "given" : `given, rank ${entry.rank.toLocaleString("en")}`;
  }

  function alternative(entry, position) {
    const note = remark(entry, position);
    const bar = make("span", "bar");
    bar.style.width = `${100 * Math.min(1, entry.p)}%`;
    const item = make("li", entry.rank === null ? "impossible" : note ? "given" : "",
      make("span", "p", probabilityText(entry.p)), make("bdi", "", entry.token), bar);
    if (note) item.append(make("span", "note", note));
    return item;
  }

  function describeStep(found, index) {
    const possible = found.nonzeros === model().vocabulary
      ? `all ${found.nonzeros.toLocaleString("en")} tokens have p > 0`
      : `${count(found.nonzeros, "token", "tokens")} with p > 0`;
    const sum = Math.abs(found.prob_sum - 1) < 1e-3 ? "" : `, Σp = ${found.prob_sum.toFixed(3)}`;
    const card = make("li", "step",
      make("h4", "", `${index + 1} `, make("bdi", "", found.token)), make("p", "", possible + sum),
      make("ul", "", ...found.alternatives.map((entry, at) => alternative(entry, at + 1))));
    if (found.left_out) {
      const more = found.left_out.toLocaleString("en");
      card.append(make("p", "", `${more} more, together ${probabilityText(found.left_out_p)}`));
    }
    return card;
  }

  function drawAlternatives() {
    const { steps } = sentence();
    const single = steps.filter((found) => found.nonzeros === 1).length;
    const dense = steps.every((found) => found.nonzeros === model().vocabulary);
    at("support").textContent = "Each column is one decoding step, teacher-forced on the " +
      "reference. It lists the tokens of nonzero probability; the reference token has a frame, " +
      "dashed if its probability is 0. " +
      (dense ? "Every token has nonzero probability at every step; the most probable are listed."
        : `At ${single} of ${count(steps.length, "step", "steps")} a single token is possible.`) +
      (model().normalised ? "" : " The numbers are weights of α-ReLU, which need not sum to 1.");
    at("steps").replaceChildren(...steps.map(describeStep));
    at("steps").scrollLeft = 0;
  }

  function draw() {
    const { source, target } = sentence();
    at("source").textContent = source.join(" ");
    at("reference").textContent = target.join(" ");
    at("previous").disabled = at("sentence").selectedIndex === 0;
    at("next").disabled = at("sentence").selectedIndex === model().sentences.length - 1;
    drawAttention();
    drawAlternatives();
  }

  function start() {
    offer(at("model"), data.models.map(({ name, output }, index) => [String(index),
      name === output ? name : `${name}: ${output}`]));
    const preview = ({ number, source }) => {
      const text = source.join(" ");
      return `${number}: ${text.length > 40 ? `${text.slice(0, 40)}…` : text}`;
    };
    offer(at("sentence"), data.models[0].sentences.map((found) =>
      [String(found.number), preview(found)]));
    offerPlaces();
    at("model").addEventListener("change", () => { offerPlaces(); draw(); });
    at("place").addEventListener("change", () => { offerLayers(); draw(); });
    for (const id of ["sentence", "layer", "head"]) at(id).addEventListener("change", draw);
    at("previous").addEventListener("click", () => step(-1));
    at("next").addEventListener("click", () => step(1));
    for (const kind of ["pointerover", "focusin"]) {
      at("grid").addEventListener(kind, (event) => {
        const cell = event.target.closest("td[role=gridcell]");
        if (cell) tell(cell);
      });
    }
    at("grid").addEventListener("keydown", onGridKey);
    at("without-script").hidden = true;
    at("browser").hidden = false;
    draw();
  }

  start();
})();
