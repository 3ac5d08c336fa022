// Turns the traces of every structure on the page; without it they stand still.
for (const svg of document.querySelectorAll("svg[data-traces]")) {
  const traces = JSON.parse(svg.dataset.traces);
  const lines = [...svg.querySelectorAll("polyline")];
  const half = svg.viewBox.baseVal.width / 2;
  let turn = [1, 0, 0, 0, 1, 0, 0, 0, 1];
  let last = null;

  const times = (a, b) =>
    a.map((_, i) => [0, 1, 2].reduce((sum, k) => sum + a[i - (i % 3) + k] * b[3 * k + (i % 3)], 0));

  function rotate(across, up) {
    const [c, s, d, t] = [Math.cos(across), Math.sin(across), Math.cos(up), Math.sin(up)];
    turn = times(times([1, 0, 0, 0, d, -t, 0, t, d], [c, 0, s, 0, 1, 0, -s, 0, c]), turn);
    const depths = traces.map((trace, i) => {
      let depth = 0;
      const points = trace.map(([x, y, z]) => {
        depth += turn[6] * x + turn[7] * y + turn[8] * z;
        const across = half + turn[0] * x + turn[1] * y + turn[2] * z;
        const down = half - (turn[3] * x + turn[4] * y + turn[5] * z);
        return across.toFixed(1) + "," + down.toFixed(1);
      });
      lines[i].setAttribute("points", points.join(" "));
      return [depth / trace.length, i];
    });
    // What is nearer is drawn later, and so over the rest.
    if (svg.dataset.depth) for (const [, i] of depths.sort((a, b) => a[0] - b[0])) svg.append(lines[i]);
  }

  svg.addEventListener("pointerdown", (event) => {
    last = [event.clientX, event.clientY];
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!last) return;
    rotate((event.clientX - last[0]) / 100, (event.clientY - last[1]) / 100);
    last = [event.clientX, event.clientY];
  });
  for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, () => (last = null));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    if (!by[event.key]) return;
    event.preventDefault();
    rotate(...by[event.key]);
  });
  svg.closest("figure").querySelector(".turn").hidden = false;
}
