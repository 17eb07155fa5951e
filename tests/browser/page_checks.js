// What is asked of a page from within; each is a function without arguments.
({
  // Each text against what lies behind it, as it is drawn. Text in a drawing lies on the shape that
  // is drawn with it, and otherwise on what is behind the drawing.
  poorContrasts() {
    const MIN = 4.5;
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const parse = (colour) => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = "#000";
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      return [r, g, b, a / 255];
    };
    const over = (top, below) =>
      [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
    const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const ratio = (one, two) => {
      const [a, b] = [light(one), light(two)].sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05);
    };
    const behind = (element) => {
      const layers = [];
      for (let at = element; at; at = at.parentElement) {
        const colour = parse(getComputedStyle(at).backgroundColor);
        if (colour[3] > 0) layers.push(colour);
        if (colour[3] === 1) break;
      }
      return layers.reduceRight((below, top) => over(top, below), [255, 255, 255, 1]);
    };
    const poor = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      const text = walker.currentNode.data.trim();
      const seen = { visibilityProperty: true, opacityProperty: true };
      if (!text || !element.checkVisibility(seen)) continue;
      if (element.closest("title, option, script, style, [disabled]")) continue;
      const style = getComputedStyle(element);
      const svg = element.closest("svg");
      let back = behind(svg || element);
      if (svg) {
        const shape = element.parentElement.querySelector(":scope > rect.owner");
        if (shape) back = parse(getComputedStyle(shape).fill);
      }
      const found = ratio(over(parse(svg ? style.fill : style.color), back), back);
      const what = `${element.tagName}.${element.getAttribute("class") || ""}`;
      if (found < MIN) poor.push(`${found.toFixed(2)} ${what} ${text.slice(0, 40)}`);
    }
    return poor;
  },

  // What is wider than the window; tables may scroll within themselves.
  layoutBreaks() {
    if (document.documentElement.scrollWidth <= innerWidth) return [];
    const wide = [...document.querySelectorAll("body *")].filter((one) => {
      if (one.closest(".scroll, pre, svg")) return false;
      return one.getBoundingClientRect().right > innerWidth + 1;
    });
    const named = wide.slice(0, 5).map((one) => `${one.tagName}.${one.className} ${one.innerText}`);
    return [`${document.documentElement.scrollWidth} wide`, ...named.map((one) => one.slice(0, 80))];
  },

  // What can be used but says nothing to those who do not see it.
  unnamedControls() {
    const all = document.querySelectorAll("a[href], button, input:not([type=hidden]), select");
    const hasName = (one) =>
      (one.innerText || "").trim() || one.getAttribute("aria-label") || one.title ||
      one.labels?.length || one.querySelector('img[alt]:not([alt=""]), [aria-label]');
    return [...all].filter((one) => !hasName(one)).map((one) => one.outerHTML.slice(0, 120));
  },

  // The heads and tables of the page's inner part.
  outline() {
    const inner = document.getElementById("inner");
    return {
      heads: [...inner.querySelectorAll("h1, h2, th")].map((one) => one.innerText.trim()),
      tables: inner.querySelectorAll("table").length,
      text: inner.innerText.trim().length,
    };
  },

  // Where the focus is, and whether one sees it.
  focus() {
    const at = document.activeElement;
    if (!at || at === document.body) return null;
    const style = getComputedStyle(at);
    const places = { header: "header", tabs: ".tabs", sort: "th", filter: ".filter" };
    return {
      tag: at.tagName,
      id: at.id,
      href: at.getAttribute("href"),
      place: Object.keys(places).find((place) => at.closest(places[place])) || "",
      seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
    };
  },
})
