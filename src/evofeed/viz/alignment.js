// Draws every alignment of the page on a canvas, only the rows in view; see pages.py.
(() => {
  const KINDS = { AVILM: "#9cc3ea", FWY: "#8fd3c8", H: "#bfe3c0", KR: "#f3a79b", DE: "#d9b0ea", STNQ: "#b9e2a0", G: "#f5c98f", P: "#eee27f", C: "#f6b3cb", X: "#c9c9c9" };
  const SAME = "#8fb8de", OTHER = "#f0d9a8", BLOCK = 256, TOP = 64, LEFT = 52;
  const COLOURS = {};
  for (const [letters, colour] of Object.entries(KINDS)) for (const letter of letters) COLOURS[letter] = colour;
  const pixel = (colour) => (0xff000000 | (parseInt(colour.slice(5), 16) << 16) | (parseInt(colour.slice(3, 5), 16) << 8) | parseInt(colour.slice(1, 3), 16)) >>> 0;
  const PIXELS = new Uint32Array(128);
  for (const [letter, colour] of Object.entries(COLOURS)) PIXELS[letter.charCodeAt(0)] = pixel(colour);

  function element(kind, values, ...children) {
    const node = Object.assign(document.createElement(kind), values);
    node.append(...children);
    return node;
  }

  function draw(container) {
    const data = JSON.parse(container.dataset.alignment);
    const { rows, columns, covered } = data;
    const blocks = new Map(); // by number: the bytes, or the promise of a request
    const embedded = data.letters && Uint8Array.from(atob(data.letters), (letter) => letter.charCodeAt(0));
    let cell = 14, pointer = null; // position of the pointer on the canvas

    const colour = element("select", { onchange: () => paint() }, new Option("kind of residue"), new Option("same as the query"), new Option("none"));
    const status = element("output", {}, "point at a letter");
    const zoom = (factor) => { cell = Math.min(24, Math.max(1, Math.round(cell * factor))); paint(); };
    const button = (text, label, onclick) => element("button", { type: "button", ariaLabel: label, title: label, onclick }, text);
    const canvas = element("canvas", {});
    const content = element("div", { className: "room" }, canvas);
    const scroller = element("div", { className: "scroller", tabIndex: 0, onscroll: () => { requestAnimationFrame(paint); describe(); } }, content);
    scroller.setAttribute("role", "region");
    scroller.setAttribute("aria-label", `${rows} rows of ${columns} residues; arrow keys scroll`);
    container.append(element("div", { className: "bar" }, element("label", {}, "colour ", colour),
      button("+", "larger letters", () => zoom(1.5)), button("−", "smaller letters", () => zoom(1 / 1.5)),
      button("all columns", "as many columns as there are", () => { cell = Math.max(1, Math.floor((scroller.clientWidth - LEFT) / columns)); paint(); }), status), scroller);

    function row(number) {
      if (embedded) return embedded.subarray(number * columns, (number + 1) * columns);
      const block = Math.floor(number / BLOCK), loaded = blocks.get(block);
      if (loaded instanceof Uint8Array) return loaded.subarray((number % BLOCK) * columns, (number % BLOCK + 1) * columns);
      if (!loaded) {
        const first = block * BLOCK * columns, last = Math.min(rows, (block + 1) * BLOCK) * columns - 1;
        blocks.set(block, fetch(data.url, { headers: { Range: `bytes=${first}-${last}` } })
          .then((answer) => (answer.ok ? answer.arrayBuffer() : Promise.reject(new Error(answer.status))))
          .then((bytes) => { blocks.set(block, new Uint8Array(bytes)); requestAnimationFrame(paint); describe(); })
          .catch((error) => { status.textContent = `rows ${block * BLOCK + 1} and on could not be read: ${error.message}`; }));
      }
      return null;
    }

    const view = () => ({
      left: Math.floor(scroller.scrollLeft / cell), top: Math.floor(scroller.scrollTop / cell),
      wide: Math.ceil((scroller.clientWidth - LEFT) / cell), high: Math.ceil((scroller.clientHeight - TOP) / cell),
    });

    function paint() {
      content.style.width = `${LEFT + columns * cell}px`;
      content.style.height = `${TOP + rows * cell}px`;
      const ratio = devicePixelRatio, { left, top, wide, high } = view();
      const width = scroller.clientWidth, height = scroller.clientHeight, ink = getComputedStyle(container);
      canvas.width = width * ratio; canvas.height = height * ratio;
      canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      const across = Math.min(wide, columns - left), down = Math.min(high, rows - top), query = row(0);
      if (across > 0 && down > 0 && query) {
        const cells = new ImageData(across, down), pixels = new Uint32Array(cells.data.buffer);
        for (let i = 0; i < down; i++) {
          const letters = row(top + i);
          for (let j = 0; letters && j < across; j++) {
            const letter = letters[left + j];
            if (letter === 45 || colour.selectedIndex === 2) continue;
            pixels[i * across + j] = colour.selectedIndex ? pixel(letter === query[left + j] ? SAME : OTHER) : PIXELS[letter];
          }
        }
        const small = new OffscreenCanvas(across, down);
        small.getContext("2d").putImageData(cells, 0, 0);
        pen.imageSmoothingEnabled = false;
        pen.drawImage(small, LEFT, TOP, across * cell, down * cell);
        pen.textAlign = "center"; pen.textBaseline = "middle";
        pen.font = `${Math.min(13, cell)}px ui-monospace, monospace`;
        for (let i = 0; cell >= 8 && i < down; i++) {
          const letters = row(top + i);
          for (let j = 0; letters && j < across; j++) {
            const gap = letters[left + j] === 45;
            pen.fillStyle = gap || colour.selectedIndex === 2 ? ink.color : "#10151b";
            pen.fillText(gap ? "·" : String.fromCharCode(letters[left + j]), LEFT + (j + 0.5) * cell, TOP + (i + 0.5) * cell);
          }
        }
      }
      pen.fillStyle = ink.color; pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "alphabetic";
      const maxCovered = Math.max(...covered), labelStep = [1, 5, 10, 20, 50, 100, 200, 500].find((step) => step * cell >= 44) ?? 1000;
      pen.textAlign = "right";
      pen.fillText(maxCovered.toLocaleString("en"), LEFT - 4, 12); pen.fillText("covered", LEFT - 4, 40);
      for (let i = 0; i < down; i += Math.max(1, Math.ceil(16 / cell))) pen.fillText(top + i + 1, LEFT - 4, TOP + i * cell + Math.min(12, cell));
      pen.textAlign = "center";
      for (let j = 0; j < across; j++) {
        const bar = 36 * covered[left + j] / maxCovered;
        pen.globalAlpha = 0.55;
        pen.fillRect(LEFT + j * cell, 40 - bar, Math.max(1, cell - (cell > 3)), bar);
        pen.globalAlpha = 1;
        if ((left + j + 1) % labelStep === 0 || left + j === 0) pen.fillText(left + j + 1, LEFT + (j + 0.5) * cell, 56);
      }
    }

    function describe() {
      if (!pointer) return;
      const { left, top } = view(), column = left + Math.floor((pointer.x - LEFT) / cell), line = top + Math.floor((pointer.y - TOP) / cell);
      if (column < left || column >= columns || line >= rows) return;
      const letters = line >= top && row(line), letterOf = (cells) => String.fromCharCode(cells[column]);
      status.textContent = letters ? `row ${line + 1}, residue ${column + 1}: ${letterOf(letters)} (query ${letterOf(row(0) ?? letters)})`
        : line >= top ? `reading row ${line + 1}` : `residue ${column + 1}: ${covered[column].toLocaleString("en")} rows`;
    }
    canvas.onmousemove = (event) => { pointer = { x: event.offsetX, y: event.offsetY }; describe(); };
    new ResizeObserver(() => paint()).observe(scroller);
  }

  for (const container of document.querySelectorAll("[data-alignment]")) draw(container);
})();
