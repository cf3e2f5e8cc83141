// Draws every chart from the specification beside it, in the reader's colour scheme.
(() => {
  "use strict";
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

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
    };
  }

  function draw(figure) {
    const plot = figure.querySelector(".plot");
    const spec = JSON.parse(figure.querySelector("script").textContent);
    return vegaEmbed(plot, spec, {
      ast: true, // the page's policy forbids eval
      renderer: "svg",
      config: theme(prefersDark.matches),
      actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
      downloadFileName: figure.id,
      tooltip: { theme: prefersDark.matches ? "dark" : "light" },
    }).catch((problem) => {
      plot.textContent = "This chart could not be drawn: " + problem.message;
      console.error(figure.id, problem);
    });
  }

  function drawAll() {
    const figures = [...document.querySelectorAll(".chart")].filter((f) => f.querySelector(".plot"));
    Promise.all(figures.map(draw)).then(() => {
      document.documentElement.dataset.charts = "drawn";
    });
  }

  prefersDark.addEventListener("change", drawAll);
  drawAll();
})();
