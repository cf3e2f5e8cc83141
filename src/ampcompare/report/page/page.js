// Starts the page; while runs are watched, asks the server for a newer one and keeps what the reader had set.
(() => {
  "use strict";
  const KEPT = "ampcompare";
  const build = document.documentElement.dataset.build;

  function kept() {
    try {
      return JSON.parse(sessionStorage.getItem(KEPT)) || {};
    } catch {
      return {}; // no storage, or nothing of ours in it
    }
  }

  function refresh() {
    const parts = [Charts, Runs, Columns];
    const state = Object.assign({ scroll: window.scrollY }, ...parts.map((part) => part.state()));
    try {
      sessionStorage.setItem(KEPT, JSON.stringify(state));
    } catch {
      // without storage the page starts anew
    }
    location.reload();
  }

  async function watch() {
    const note = document.getElementById("watching");
    try {
      const answer = await fetch("/build", { cache: "no-store" });
      if ((await answer.text()) !== build) return refresh();
      note.textContent = "Watching: this page refreshes itself.";
    } catch {
      note.textContent = "The watcher has ended; this page is its last.";
    }
    setTimeout(watch, 2000);
  }

  const state = build ? kept() : {};
  Runs.start(state);
  Columns.start(state);
  const drawn = Charts.start(state);
  drawn.then(() => {
    if (state.scroll) window.scrollTo(0, state.scroll);
    if (build) watch();
  });
})();
