// Enlivens the pages; every one of them works without it.

// Live parts: the page is fetched again and the part is put in place of the old one, so that
// only the server says how it looks.
async function renew(part) {
  const answer = await fetch(location.href, { headers: { "Accept": "text/html" } });
  if (!answer.ok || answer.redirected) return null;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById(part.id);
  if (!fresh) return null;
  const kept = [...part.querySelectorAll("pre")].map((pre) => [pre.scrollTop, pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4]);
  const open = [...part.querySelectorAll("details")].map((details) => details.open);
  part.replaceChildren(...fresh.childNodes);
  for (const [i, details] of [...part.querySelectorAll("details")].entries()) details.open = open[i] || false;
  for (const [i, pre] of [...part.querySelectorAll("pre")].entries()) {
    if (kept[i]) pre.scrollTop = kept[i][1] ? pre.scrollHeight : kept[i][0]; // a log stays at its end
  }
  return fresh;
}

for (const part of document.querySelectorAll("[data-poll]")) {
  let seconds = Number(part.dataset.poll);
  const again = async () => {
    if (!document.hidden) {
      const fresh = await renew(part).catch(() => part);
      seconds = fresh ? Number(fresh.dataset.poll) : 0;
    }
    if (seconds) setTimeout(again, 1000 * seconds);
  };
  if (seconds) setTimeout(again, 1000 * seconds);
}

for (const part of document.querySelectorAll("[data-events]")) {
  const rates = [];
  let busy = false;
  let due = false;
  const show = async (event) => {
    if (event.type === "progress") rates.push(JSON.parse(event.data).progress.chains_per_second || 0);
    due = true;
    while (due && !busy) {
      due = false;
      busy = true;
      await renew(part).catch(() => null);
      busy = false;
      curve(part, rates.slice(-300));
    }
  };
  const source = new EventSource(part.dataset.events);
  source.addEventListener("progress", show);
  source.addEventListener("end", (event) => {
    source.close();
    show(event);
  });
}

function curve(part, rates) {
  const line = part.querySelector(".rate polyline");
  if (!line || rates.length < 2) return;
  const top = Math.max(...rates) || 1;
  const points = rates.map((rate, i) => `${((300 * i) / (rates.length - 1)).toFixed(1)},${(38 - (36 * rate) / top).toFixed(1)}`);
  line.setAttribute("points", points.join(" "));
  part.querySelector(".rate").hidden = false;
}

// A range of a histogram: press on one bar and let go on another.
for (const chart of document.querySelectorAll("svg[data-edges]")) {
  const bars = [...chart.querySelectorAll(":scope > a, :scope > g")];
  const { low, high, whole } = chart.dataset;
  const edges = chart.dataset.edges.split(" ").map(Number);
  const under = (event) => bars.findIndex((bar) => bar.contains(document.elementFromPoint(event.clientX, event.clientY)));
  let first = -1;
  const mark = (a, b) => bars.forEach((bar, i) => bar.classList.toggle("chosen", i >= Math.min(a, b) && i <= Math.max(a, b)));
  chart.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType !== "touch") first = under(event);
  });
  chart.addEventListener("pointermove", (event) => {
    const now = under(event);
    if (first >= 0 && now >= 0) mark(first, now);
  });
  chart.addEventListener("dragstart", (event) => event.preventDefault());
  window.addEventListener("pointerup", (event) => {
    const last = under(event);
    const from = first;
    first = -1;
    if (from < 0) return;
    mark(1, 0);
    if (last < 0 || last === from) return;
    const asked = new URLSearchParams(location.search);
    asked.delete("page");
    if (low) asked.set(low, edges[Math.min(from, last)]);
    if (high) asked.set(high, edges[Math.max(from, last) + 1] - (whole === "1" ? 1 : 0));
    location.search = asked;
  });
}

// A digest is copied by a click.
document.addEventListener("click", (event) => {
  const digest = event.target.closest("code.digest");
  if (!digest || digest.closest("a") || !navigator.clipboard) return;
  navigator.clipboard.writeText(digest.title).then(() => {
    digest.classList.add("copied");
    setTimeout(() => digest.classList.remove("copied"), 1000);
  });
});

// What cannot be taken back is asked twice.
document.addEventListener("submit", (event) => {
  const words = event.target.dataset.ask;
  if (words && !confirm(words)) event.preventDefault();
});
