// What the page is compared with: exchanges the parts that depend on it. Every sentence was made beforehand.
const Views = (() => {
  "use strict";
  const AS_PLANNED = -1;
  const { names, views, variations } = JSON.parse(document.getElementById("views").textContent);
  const pieces = document.querySelectorAll("template.piece");
  const places = names.map((name) => document.querySelector(`[data-part="${name}"]`));
  const planned = places.map((place) => [...place.childNodes].map((node) => node.cloneNode(true)));
  const shown = names.map(() => AS_PLANNED);
  const choice = document.getElementById("choice");
  const baseline = document.getElementById("choose-baseline");
  const margin = document.getElementById("choose-margin");
  const back = document.getElementById("as-planned");
  const parsed = variations.map((text) => JSON.parse(text));

  function chosen() {
    const key = { baseline: baseline?.value, margin: margin?.value };
    const fits = (view) =>
      (!baseline || view.baseline === key.baseline) && (!margin || view.margin === key.margin);
    return views.find(fits);
  }

  function show() {
    const view = chosen();
    places.forEach((place, i) => {
      const number = view.parts[i];
      if (number === shown[i]) return; // a screen reader is told what changed, and nothing else
      shown[i] = number;
      const nodes = number === AS_PLANNED ? planned[i] : [pieces[number].content];
      const fresh = nodes.map((node) => node.cloneNode(true));
      place.replaceChildren(...fresh);
    });
    back.hidden = view.parts.every((number) => number === AS_PLANNED);
    const charts = Object.entries(view.charts).map(([name, number]) => [name, parsed[number] ?? null]);
    return Charts.vary(Object.fromEntries(charts));
  }

  function choose(select, value) {
    if (select && [...select.options].some((option) => option.value === value)) select.value = value;
  }

  function start(kept) {
    if (!choice) return;
    choice.hidden = false;
    for (const select of [baseline, margin]) select?.addEventListener("change", show);
    back.addEventListener("click", () => {
      for (const select of [baseline, margin]) {
        for (const option of select?.options ?? []) option.selected = option.defaultSelected;
      }
      baseline.focus();
      show();
    });
    choose(baseline, kept.baseline);
    choose(margin, kept.margin);
    if (kept.baseline || kept.margin) show();
  }

  return { start, state: () => ({ baseline: baseline?.value, margin: margin?.value }) };
})();
