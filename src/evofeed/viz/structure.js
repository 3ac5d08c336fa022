// Draws every structure of the page with Mol*, which is loaded once one of them is in view;
// see pages.py.
(() => {
  const STYLES = { cartoon: "cartoon", sticks: "ball_and_stick", surface: "surface" };
  const THEMES = {
    pLDDT: "plddt-confidence", chain: "chain-id", "along the chain": "sequence-id",
    element: "element-symbol",
  };
  const BANDS = [["#0053d6", "above 90"], ["#65cbf3", "70 to 90"], ["#ffdb13", "50 to 70"], ["#ff7d45", "below 50"]];

  function molstar() {
    if (!document.querySelector('script[data-name="molviewspec.js"]')) { // then the page has no style sheet of it either
      document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/static/molviewspec.css" }));
    }
    return panels.library("molviewspec.js");
  }

  // A scene in the format of MolViewSpec.
  function scene(models, style, theme, background) {
    const node = (kind, params, children = [], custom = undefined) => ({ kind, params, children, custom });
    const download = (model) => {
      const custom = { molstar_color_theme_name: THEMES[theme] };
      const colour = THEMES[theme] ? node("color", { color: model.colour }, [], custom) : node("color", { color: model.colour });
      const polymer = node("representation", { type: STYLES[style] }, [colour]);
      const parts = ["polymer", "ligand"].map((selector) => node("component", { selector },
        selector === "polymer" ? [polymer] : [node("representation", { type: "ball_and_stick" }, [colour])]));
      // A matrix for multiplication from the right, row by row, is one from the left, column by column.
      if (model.placed) parts.unshift(node("transform", { rotation: model.placed[0], translation: model.placed[1] }));
      return node("download", { url: model.url }, [node("parse", { format: "mmcif" }, [node("structure", { type: "model" }, parts)])]);
    };
    const children = [...models.map(download), node("canvas", { background_color: background })];
    return JSON.stringify({ metadata: { version: "1", timestamp: new Date().toISOString() }, root: { kind: "root", children } });
  }

  function choice(bar, text, options, change) {
    const label = document.createElement("label"), select = document.createElement("select");
    select.append(...options.map((option) => new Option(option)));
    select.onchange = change;
    label.append(text, " ", select);
    bar.append(label);
    return select;
  }

  async function draw(container) {
    const { models } = JSON.parse(container.dataset.structure);
    for (const model of models) {
      model.url = model.url ? new URL(model.url, location.href).href : `${URL.createObjectURL(new Blob([model.cif]))}#.cif`;
    }
    const bar = document.createElement("div"), view = document.createElement("div"), legend = document.createElement("p");
    bar.className = "bar";
    view.className = "view";
    container.append(bar, view, legend);
    const several = models.length > 1, confident = models.some((model) => model.plddt);
    const colours = [...(several ? ["structure"] : []), ...(confident ? ["pLDDT"] : []), ...Object.keys(THEMES).slice(1)];
    const handlers = {}, shown = models.map(() => true);
    const data = () => {
      const background = getComputedStyle(container).getPropertyValue("--panel").trim();
      legend.replaceChildren(...(colour.value === "pLDDT" ? BANDS : colour.value === "structure" ? models.map((m) => [m.colour, m.name]) : []).map(([paint, text]) => {
        const entry = document.createElement("span"), box = document.createElement("i");
        box.style.background = paint;
        entry.append(box, text);
        return entry;
      }));
      return scene(models.filter((_, i) => shown[i]), style.value, colour.value, hexColour(background));
    };
    const hexColour = (name) => {
      const probe = document.createElement("canvas").getContext("2d");
      probe.fillStyle = name || "#ffffff";
      return probe.fillStyle; // as #rrggbb
    };
    const reload = () => handlers["change:msvj_data"]?.();
    const style = choice(bar, "style", Object.keys(STYLES), reload);
    const colour = choice(bar, "colour", colours, reload);
    if (several) {
      models.forEach((model, i) => {
        const label = document.createElement("label"), box = document.createElement("input");
        Object.assign(box, { type: "checkbox", checked: true, onchange: () => { shown[i] = box.checked; reload(); } });
        label.append(box, " ", model.name);
        bar.append(label);
      });
    }
    const values = {
      height: "420px", width: "100%", mvs_load_options: { replaceExisting: true },
      viewer_options: {
        layoutIsExpanded: false, layoutShowControls: false, viewportShowExpand: true, viewportShowControls: false,
        viewportShowSettings: false, viewportShowSelectionMode: false, viewportShowAnimation: false,
        viewportShowTrajectoryControls: false, volumeStreamingDisabled: true,
        disabledExtensions: ["volseg", "zenodo-import", "g3d", "pdbe-structure-quality-report", "rcsb-validation-report"],
      },
    };
    if (!document.createElement("canvas").getContext("webgl2")) {
      view.textContent = "this browser has no WebGL, which the view in three dimensions needs";
      return;
    }
    try {
      await molstar();
    } catch (error) {
      view.textContent = error.message;
      return;
    }
    globalThis.MolViewSpec.render({
      el: view,
      model: { get: (name) => (name === "msvj_data" ? data() : values[name]), on: (name, call) => { handlers[name] = call; } },
    });
  }

  panels.near(document.querySelectorAll("[data-structure]"), draw);
})();
