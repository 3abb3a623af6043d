/* The plot of a pixel's spectrum over the training values of its class, as SVG. */
"use strict";

window.undulatusSpectrum = (function () {
  const SPACE = "http://www.w3.org/2000/svg";
  const [WIDTH, HEIGHT] = [380, 250];
  const MARGIN = { left: 52, right: 8, top: 8, bottom: 44 };
  const MOST_LABELS = 16;

  function add(parent, name, attributes, text) {
    const made = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  /** Ticks at multiples of 1, 2 or 5 times a power of ten. */
  function ticks(low, high) {
    const rough = (high - low) / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((each) => each >= rough);
    const first = Math.ceil(low / step);
    const found = [];
    for (let n = first; n * step <= high * (1 + 1e-9); n++) found.push(Number((n * step).toPrecision(12)));
    return found;
  }

  const number = (value) => {
    const size = Math.abs(value);
    if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(1);
    return String(Number(value.toPrecision(4)));
  };

  /** A path through points; it breaks where one is null. */
  function line(points) {
    let [path, pen] = ["", "M"];
    for (const point of points) {
      if (point) path += `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      pen = point ? "L" : "M";
    }
    return path;
  }

  /** Ranges of bands that have values, each as [first, last]. */
  function runs(values) {
    const found = [];
    values.forEach((value, n) => {
      if (value === null) return;
      const last = found[found.length - 1];
      if (last && last[1] === n - 1) last[1] = n;
      else found.push([n, n]);
    });
    return found;
  }

  /** Draw a spectrum, and quantiles (5, 25, 50, 75, 95 %) of the class's training values. */
  function draw(svg, { bands, values, quantiles, units }) {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    const known = [values, ...(quantiles ?? [])].flat().filter((value) => value !== null);
    if (!known.length) {
      add(svg, "text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no values");
      return;
    }
    let [low, high] = [Math.min(...known), Math.max(...known)];
    const margin = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
    [low, high] = [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
    const right = WIDTH - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    const x = (n) => MARGIN.left + (n + 0.5) * (right - MARGIN.left) / bands.length;
    const y = (value) => bottom - (value - low) / (high - low) * (bottom - MARGIN.top);
    for (const tick of ticks(low, high)) {
      add(svg, "line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) });
      add(svg, "text", { x: MARGIN.left - 5, y: y(tick) + 4, "text-anchor": "end" }, number(tick));
    }
    const every = Math.ceil(bands.length / MOST_LABELS);
    bands.forEach((name, n) => {
      if (n % every) return;
      const turn = `rotate(-50 ${x(n)} ${bottom + 12})`;
      add(svg, "text", { x: x(n), y: bottom + 12, "text-anchor": "end", transform: turn }, name);
    });
    if (units) add(svg, "text", { class: "units", x: MARGIN.left + 4, y: MARGIN.top + 10 }, units);
    if (quantiles) drawQuantiles(svg, quantiles, x, y);
    const points = values.map((value, n) => (value === null ? null : [x(n), y(value)]));
    add(svg, "path", { class: "spectrum", d: line(points) });
    for (const point of points) {
      if (point) add(svg, "circle", { class: "spectrum-point", cx: point[0], cy: point[1], r: 2.6 });
    }
    add(svg, "rect", {
      class: "axes", x: MARGIN.left, y: MARGIN.top, width: right - MARGIN.left, height: bottom - MARGIN.top });
  }

  function drawQuantiles(svg, quantiles, x, y) {
    const [q5, q25, q50, q75, q95] = quantiles;
    for (const [name, lower, upper] of [["wide", q5, q95], ["narrow", q25, q75]]) {
      for (const [first, last] of runs(lower)) {
        const there = [];
        const back = [];
        for (let n = first; n <= last; n++) {
          there.push([x(n), y(upper[n])]);
          back.unshift([x(n), y(lower[n])]);
        }
        add(svg, "path", { class: name, d: `${line([...there, ...back])}Z` });
      }
    }
    add(svg, "path", { class: "median", d: line(q50.map((v, n) => (v === null ? null : [x(n), y(v)]))) });
  }

  return { draw, number };
})();
