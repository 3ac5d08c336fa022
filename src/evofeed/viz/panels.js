// Shared by the scripts of panels: a panel is drawn, and its library loaded, once it is near the window.
const panels = {
  read: {},

  // Loads the script of a library once: from text in the page, else from a file of its host.
  library(name) {
    return (panels.read[name] ??= new Promise((resolve, reject) => {
      const embedded = document.querySelector(`script[data-name="${name}"]`), element = document.createElement("script");
      if (embedded) {
        element.textContent = embedded.textContent;
        document.body.append(element);
        return resolve();
      }
      element.onload = () => resolve();
      element.onerror = () => reject(new Error(`${name} did not load`));
      element.src = `/static/${name}`;
      document.head.append(element);
    }));
  },

  // Calls `draw` for each element once it is near the window.
  near(elements, draw) {
    const observer = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        observer.unobserve(target);
        draw(target);
      }
    }, { rootMargin: "150px" });
    for (const element of elements) observer.observe(element);
  },
};
