// Draws every chart from the specification beside it, in the reader's colour scheme; one filter for all of them.
const Charts = (() => {
  "use strict";
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map(); // figure -> Vega view
  const picked = new Set(); // labels that are singled out; empty: all are shown
  const WARNINGS = 2; // a level of Vega's log
  const QUIET = { ast: true, renderer: "svg" }; // the page's policy forbids eval
  let showRuns = false;
  let spreading = false; // while this script itself sets the filter of the charts

  function theme(dark) {
    const text = dark ? "#e6e8ec" : "#1c2330";
    const soft = dark ? "#a3abb8" : "#5b6472";
    const line = dark ? "#3a4150" : "#d9dde4";
    return {
      axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line },
      legend: { labelColor: text },
      title: { color: text, subtitleColor: soft },
      text: { color: text },
      tick: { color: text },
      rule: { color: text },
      style: { halo: { stroke: dark ? "#1b2029" : "#ffffff", strokeWidth: 4 } },
    };
  }

  // Rows come as runs of rows that share their words: [what they share, columns of numbers].
  function unpack(parts) {
    return parts.flatMap(([shared, columns]) => {
      const names = Object.keys(columns);
      return columns[names[0]].map((_, i) => {
        const row = { ...shared };
        for (const name of names) row[name] = columns[name][i];
        return row;
      });
    });
  }

  // The specification as it stands in the page, with its rows.
  function specOf(figure, dark) {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    spec.datasets.data = unpack(spec.datasets.data);
    for (const [part, look] of Object.entries(theme(dark))) {
      spec.config[part] = { ...spec.config[part], ...look }; // the chart's own look is for paper
    }
    return spec;
  }

  async function draw(figure) {
    const plot = figure.querySelector(".plot");
    const dark = prefersDark.matches;
    const spec = specOf(figure, dark);
    spec.title.subtitle = spec.title.subtitle.slice(spec.usermeta.setting); // the page says it once
    try {
      views.get(figure)?.finalize();
      const { view } = await vegaEmbed(plot, spec, {
        ...QUIET,
        logLevel: WARNINGS,
        actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
        downloadFileName: figure.id,
        tooltip: { theme: dark ? "dark" : "light" },
      });
      view.toImageURL = (kind, scale) => picture(figure, kind, scale);
      views.set(figure, view);
      view.addDataListener("pick_store", (_, tuples) => take(tuples));
    } catch (problem) {
      plot.textContent = "This chart could not be drawn: " + problem.message;
      console.error(figure.id, problem);
    }
  }

  // A picture leaves the page: it has the setting with it, and white paper.
  async function picture(figure, kind, scale) {
    const box = document.createElement("div");
    box.className = "unseen";
    box.style.width = figure.querySelector(".plot").clientWidth + "px";
    document.body.append(box);
    try {
      const spec = { ...specOf(figure, false), background: "white", padding: 10 };
      const { view } = await vegaEmbed(box, spec, { ...QUIET, actions: false });
      await single(view);
      const address = await view.toImageURL(kind, scale);
      view.finalize();
      return address;
    } finally {
      box.remove();
    }
  }

  // A click in the legend of one chart, or on a bar, is the filter of all.
  function take(tuples) {
    if (spreading) return;
    picked.clear();
    for (const tuple of tuples) picked.add(tuple.values[0]);
    spread();
  }

  // The filter and the switch of all charts, on one of them.
  function single(view) {
    const fields = view.signal("pick_tuple_fields");
    const tuples = [...picked].map((label) => ({ unit: "", fields, values: [label] }));
    view.data("pick_store", tuples);
    if (view.getState().signals.runs !== undefined) view.signal("runs", showRuns);
    return view.runAsync();
  }

  function spread() {
    spreading = true;
    const jobs = [...views.values()].map(single);
    for (const chip of document.querySelectorAll(".chip[data-label]")) {
      chip.setAttribute("aria-pressed", String(picked.has(chip.dataset.label)));
    }
    const all = document.querySelector(".chip.all");
    if (all) all.setAttribute("aria-pressed", String(picked.size === 0));
    return Promise.all(jobs).finally(() => {
      spreading = false;
    });
  }

  function toggle(label) {
    if (!picked.delete(label)) picked.add(label);
    return spread();
  }

  async function drawAll(figures = document.querySelectorAll(".chart")) {
    document.documentElement.dataset.charts = "drawing";
    await Promise.all([...figures].filter((f) => f.querySelector(".plot")).map(draw));
    if (picked.size || showRuns) await spread();
    document.documentElement.dataset.charts = "drawn";
  }

  let last = Promise.resolve(); // one drawing at a time

  function start(kept) {
    for (const label of kept.picked || []) picked.add(label);
    showRuns = Boolean(kept.showRuns);
    for (const chip of document.querySelectorAll(".chip[data-label]")) {
      chip.addEventListener("click", () => toggle(chip.dataset.label));
    }
    document.querySelector(".chip.all")?.addEventListener("click", () => {
      picked.clear();
      spread();
    });
    const box = document.getElementById("show-runs");
    if (box) {
      box.checked = showRuns;
      box.addEventListener("change", () => {
        showRuns = box.checked;
        spread();
      });
    }
    for (const button of document.querySelectorAll(".chart .wide")) {
      button.addEventListener("click", () => {
        const figure = button.closest(".chart");
        button.setAttribute("aria-pressed", String(figure.classList.toggle("whole")));
        window.dispatchEvent(new Event("resize")); // the charts take the width of their container
      });
    }
    const redraw = () => (last = last.then(() => drawAll()));
    prefersDark.addEventListener("change", redraw);
    return redraw();
  }

  return { start, state: () => ({ picked: [...picked], showRuns }) };
})();
