// Draws every figure of the page from the JSON it holds, with plotly.js; see pages.py.
(() => {
  const linked = {}; // places by the name of what is drawn and zoomed together
  const waiting = new Map();
  for (const place of document.querySelectorAll("[data-figure]")) {
    const { data, layout } = JSON.parse(place.dataset.figure);
    const height = layout.height ? Math.min(layout.height, place.clientWidth || layout.height) : 280; // as wide on a phone
    place.style.minHeight = `${height}px`;
    waiting.set(place, { data, layout: { ...layout, height } });
  }

  function draw(place) {
    if (!waiting.has(place)) return;
    const { data, layout: { linked: name, ...own } } = waiting.get(place);
    waiting.delete(place);
    const common = {
      margin: { l: 50, r: 10, t: 10, b: 40 }, showlegend: data.length > 1,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: getComputedStyle(place).color }, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      template: { layout: { xaxis: { gridcolor: "#8885", automargin: true }, yaxis: { gridcolor: "#8885", automargin: true } } },
    };
    const enlarge = { name: "enlarge", title: "larger or smaller", icon: Plotly.Icons.zoombox, click: () => {
      const large = place.closest("figure").classList.toggle("large");
      Plotly.relayout(place, { height: own.height * (large ? 1.8 : 1) });
    } };
    Plotly.newPlot(place, data, { ...common, ...own }, { responsive: true, displaylogo: false, modeBarButtonsToAdd: [enlarge] });
    if (!name) return;
    (linked[name] ??= []).push(place);
    place.on("plotly_relayout", (change) => {
      const range = Object.fromEntries(Object.entries(change).filter(([key]) => /^[xy]axis/.test(key)));
      if (place.follows || !Object.keys(range).length) return;
      for (const other of linked[name].filter((each) => each !== place)) {
        other.follows = true;
        Plotly.relayout(other, { ...range }).then(() => { other.follows = false; });
      }
    });
    for (const [other, { layout }] of [...waiting]) if (layout.linked === name) draw(other);
  }

  const plotly = (then) => panels.library("plotly.min.js").then(then);
  panels.near(waiting.keys(), (place) => plotly(() => draw(place)).catch((error) => { place.textContent = error.message; }));
  addEventListener("beforeprint", () => { if (waiting.size) plotly(() => [...waiting.keys()].forEach(draw)); });
})();
