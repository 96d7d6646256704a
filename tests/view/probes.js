// What a browser can be asked of a page's legibility.

// Texts whose contrast to what is behind them is below 4.5 : 1 (WCAG 2.2, 1.4.3).
globalThis.tooPale = () => {
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * (top[3] ?? 1) + below[i] * (1 - (top[3] ?? 1)));
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => 0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2]);
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(parse(getComputedStyle(at).backgroundColor));
    return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const poor = [];
  let seen = 0;
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || node.closest("svg, button:disabled, .sr, .skip, script, style, title") || node.offsetParent === null) continue;
    seen += 1;
    const back = behind(node);
    const fore = over(parse(getComputedStyle(node).color), back);
    const [brighter, darker] = [light(fore), light(back)].sort((a, b) => b - a);
    const ratio = (brighter + 0.05) / (darker + 0.05);
    if (ratio < 4.5) poor.push(`${node.className || node.tagName} ${ratio.toFixed(2)} ${node.textContent.slice(0, 30)}`);
  }
  if (!seen) poor.push("no text was found");
  return [...new Set(poor)].slice(0, 8);
};

// What can be used or is a picture, and has no name for those who do not see it.
globalThis.nameless = () => {
  const parts = [...document.querySelectorAll("a[href], button, input, select, [role=img], [role=tablist], nav")];
  const named = (node) => node.getAttribute("aria-label") || node.textContent.trim() || node.title || node.labels?.length;
  return parts.filter((node) => !named(node)).map((node) => node.outerHTML.slice(0, 120));
};
