// Draws the charts; a name in the legend singles its backend out in all of them.
(async () => {
  "use strict";
  const page = document.documentElement;
  const { config, charts } = JSON.parse(document.getElementById("specifications").textContent);
  const buttons = [...document.querySelectorAll(".legend button")];
  const quiet = { ast: true, renderer: "svg", actions: false, logLevel: 2 }; // `ast`: the policy forbids eval
  const views = [];
  page.dataset.charts = "drawing";
  for (const [name, spec] of Object.entries(charts)) {
    const plot = document.querySelector(`#chart-${name} .plot`);
    try {
      views.push((await vegaEmbed(plot, { ...spec, config }, quiet)).view);
    } catch (problem) {
      plot.textContent = "This chart could not be drawn: " + problem.message;
      console.error(name, problem);
    }
  }
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const picked = button.getAttribute("aria-pressed") === "true" ? null : button.dataset.label;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other.dataset.label === picked));
      for (const view of views) view.signal("pick", picked).runAsync();
    });
  }
  const link = document.querySelector('a[href="#methods"]');
  if (link) link.addEventListener("click", () => { document.getElementById("methods").open = true; });
  page.dataset.charts = "drawn";
})();
