// What scripts of panels share: none is drawn, and no library read, before it is near the window.
const panels = {
  read: {},

  // The script of a library, once: text that the page holds, else a file of its host.
  library(name) {
    return (panels.read[name] ??= new Promise((done, failed) => {
      const here = document.querySelector(`script[data-name="${name}"]`), element = document.createElement("script");
      if (here) {
        element.textContent = here.textContent;
        document.body.append(element);
        return done();
      }
      element.onload = () => done();
      element.onerror = () => failed(new Error(`${name} did not load`));
      element.src = `/static/${name}`;
      document.head.append(element);
    }));
  },

  // Calls `draw` for each place when it comes near.
  near(places, draw) {
    const seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        seen.unobserve(target);
        draw(target);
      }
    }, { rootMargin: "150px" });
    for (const place of places) seen.observe(place);
  },
};
