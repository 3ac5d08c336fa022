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

// A digest is copied by a click.
document.addEventListener("click", (event) => {
  const digest = event.target.closest("code.digest");
  if (!digest || digest.closest("a") || !navigator.clipboard) return;
  navigator.clipboard.writeText(digest.title).then(() => {
    digest.classList.add("copied");
    setTimeout(() => digest.classList.remove("copied"), 1000);
  });
});
