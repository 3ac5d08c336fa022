// Draws every figure of the page from the JSON it holds; see pages.py.
const linked = {}; // places by the name of what is zoomed together
for (const place of document.querySelectorAll("[data-figure]")) {
  const { data, layout } = JSON.parse(place.dataset.figure);
  const common = {
    margin: { l: 50, r: 10, t: 10, b: 40 }, height: 280, showlegend: data.length > 1,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: getComputedStyle(place).color }, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
    template: { layout: { xaxis: { gridcolor: "#8885" }, yaxis: { gridcolor: "#8885" } } },
  };
  const { linked: name, ...own } = layout;
  if (own.height) own.height = Math.min(own.height, place.clientWidth || own.height); // as wide on a phone
  const enlarge = { name: "enlarge", title: "larger or smaller", icon: Plotly.Icons.zoombox, click: () => {
    const large = place.closest("figure").classList.toggle("large");
    Plotly.relayout(place, { height: (own.height ?? common.height) * (large ? 1.8 : 1) });
  } };
  Plotly.newPlot(place, data, { ...common, ...own }, { responsive: true, displaylogo: false, modeBarButtonsToAdd: [enlarge] });
  if (!name) continue;
  (linked[name] ??= []).push(place);
  place.on("plotly_relayout", (change) => {
    const range = Object.fromEntries(Object.entries(change).filter(([key]) => /^[xy]axis/.test(key)));
    if (place.follows || !Object.keys(range).length) return;
    for (const other of linked[name].filter((each) => each !== place)) {
      other.follows = true;
      Plotly.relayout(other, { ...range }).then(() => { other.follows = false; });
    }
  });
}
