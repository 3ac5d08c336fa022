// Draws every figure of the page from its JSON, with plotly.js; see pages.py.
(() => {
  const linked = {}; // drawn figures by the name of their group, which are zoomed together
  const waiting = new Map();
  for (const container of document.querySelectorAll("[data-figure]")) {
    const { data, layout } = JSON.parse(container.dataset.figure);
    const height = layout.height ? Math.min(layout.height, container.clientWidth || layout.height) : 280; // as wide on a phone
    container.style.minHeight = `${height}px`;
    waiting.set(container, { data, layout: { ...layout, height } });
  }

  function draw(container) {
    if (!waiting.has(container)) return;
    const { data, layout: { linked: name, ...figureLayout } } = waiting.get(container);
    waiting.delete(container);
    const common = {
      margin: { l: 50, r: 10, t: 10, b: 40 }, showlegend: data.length > 1,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: getComputedStyle(container).color }, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      template: { layout: { xaxis: { gridcolor: "#8885", automargin: true }, yaxis: { gridcolor: "#8885", automargin: true } } },
    };
    const enlarge = { name: "enlarge", title: "larger or smaller", icon: Plotly.Icons.zoombox, click: () => {
      const large = container.closest("figure").classList.toggle("large");
      Plotly.relayout(container, { height: figureLayout.height * (large ? 1.8 : 1) });
    } };
    Plotly.newPlot(container, data, { ...common, ...figureLayout }, { responsive: true, displaylogo: false, modeBarButtonsToAdd: [enlarge] });
    if (!name) return;
    (linked[name] ??= []).push(container);
    container.on("plotly_relayout", (change) => {
      const range = Object.fromEntries(Object.entries(change).filter(([key]) => /^[xy]axis/.test(key)));
      if (container.follows || !Object.keys(range).length) return;
      for (const other of linked[name].filter((figure) => figure !== container)) {
        other.follows = true;
        Plotly.relayout(other, { ...range }).then(() => { other.follows = false; });
      }
    });
    for (const [other, { layout }] of [...waiting]) if (layout.linked === name) draw(other);
  }

  const plotly = (callback) => panels.library("plotly.min.js").then(callback);
  panels.near(waiting.keys(), (container) => plotly(() => draw(container)).catch((error) => { container.textContent = error.message; }));
  addEventListener("beforeprint", () => { if (waiting.size) plotly(() => [...waiting.keys()].forEach(draw)); });
})();
