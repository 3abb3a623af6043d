/* The panes: one view of the map, shown by all of them in step. */
"use strict";

window.undulatusPanes = (function () {
  const data = window.undulatusMap;
  const loading = window.undulatusLoading;
  const SIDE = data.tile;
  const [HEIGHT, WIDTH] = data.shape;
  const LARGEST_SCALE = 40;
  const CLICK_DISTANCE = 5;
  // Milliseconds: browsers refuse to change the address many times a second.
  const NAMING_DELAY = 400;
  const canvases = [...document.querySelectorAll("canvas[data-pane]")];
  const element = (id) => document.getElementById(id);

  // The centre of the view, in pixels of the image, and screen pixels for each of them.
  const view = { x: WIDTH / 2, y: HEIGHT / 2, scale: 0 };
  const marks = { chosen: null, pointer: null };
  const pointers = new Map();
  let drawing = false;
  let choose = () => {};
  let moved = 0;
  let naming = 0;

  // Colours of the planes

  const rgba = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const little = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  const classColours = data.classes.map(({ colour }) => little(rgba(colour)));
  const scales = Object.fromEntries(Object.entries(data.colours).map(([name, text]) => {
    const table = loading.bytes(text);
    return [name, Uint32Array.from({ length: 256 }, (_, n) => little(table.subarray(4 * n, 4 * n + 3)))];
  }));
  const plane = {
    deviation: data.planes.indexOf("deviation"),
    outside: data.planes.indexOf("outside"),
    probability: data.planes.indexOf("probability"),
  };
  const choice = () => ({
    probability: element("probability-choice")?.value ?? "shown",
    uncertainty: element("uncertainty-choice")?.value ?? "deviation",
    outside: element("outside-choice")?.checked ?? false,
  });

  /** The byte of the probability of a class at a place in the planes. */
  function probabilityByte(planes, index, at) {
    if (data.classes.length > 2) return planes[plane.probability + index][at];
    const second = planes[plane.probability][at];
    return index === 1 || second === data.missing ? second : data.one - second;
  }

  /** Entropy of the probabilities at a place, in nats. */
  function entropy(planes, at) {
    let sum = 0;
    for (let index = 0; index < data.classes.length; index++) {
      const p = probabilityByte(planes, index, at) / data.one;
      if (p > 0) sum -= p * Math.log(p);
    }
    return sum;
  }

  const share = (value, low, high) => Math.min(1, Math.max(0, (value - low) / (high - low)));

  /** From a byte of the standard deviation to its value, and to its colour. */
  const [least, largest] = data.deviation?.range ?? [1, 1];
  const deviation = (byte) => least * (largest / least) ** (byte / data.one);
  const deviationColours = data.deviation && Uint32Array.from({ length: 256 }, (_, byte) =>
    scales.uncertainty[Math.round(255 * share(
      Math.log(deviation(byte)), Math.log(data.deviation.low), Math.log(data.deviation.high)))]);

  /** Functions from the planes of a tile and a place to a colour, by the pane. */
  function painter(name, planes) {
    const { probability, uncertainty } = choice();
    const codes = planes[0];
    const colours = scales.probability;
    const entropyScale = 255 / Math.log(data.classes.length);
    if (name === "class") return (at) => classColours[codes[at]];
    if (name === "probability") {
      const fixed = probability === "shown" ? null : Number(probability);
      const low = fixed === null ? 1 / data.classes.length : 0;
      const table = Uint32Array.from({ length: 256 }, (_, byte) =>
        colours[Math.round(255 * share(byte / data.one, low, 1))]);
      return (at) => table[probabilityByte(planes, fixed ?? codes[at], at)];
    }
    if (uncertainty === "entropy") {
      return (at) => scales.uncertainty[Math.min(255, Math.round(entropyScale * entropy(planes, at)))];
    }
    const deviations = planes[plane.deviation];
    return (at) => (deviations[at] === data.missing ? 0 : deviationColours[deviations[at]]);
  }

  /** A canvas with the colours of a tile in a pane; kept until other colours are chosen. */
  function painted(tile, name) {
    if (name === "image") return tile.image;
    const { probability, uncertainty } = choice();
    const key = { class: "", probability, uncertainty }[name];
    const kept = tile.drawn[name];
    if (kept && kept.key === key) return kept.canvas;
    const canvas = kept?.canvas ?? Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
    const context = canvas.getContext("2d");
    const image = context.createImageData(SIDE, SIDE);
    const pixels = new Uint32Array(image.data.buffer);
    const paint = painter(name, tile.planes);
    const codes = tile.planes[0];
    for (let at = 0; at < pixels.length; at++) {
      if (codes[at] !== data.missing) pixels[at] = paint(at);
    }
    context.putImageData(image, 0, 0);
    tile.drawn[name] = { key, canvas };
    return canvas;
  }

  /** A canvas with dots where pixels are outside what was learned, or null if none is. */
  function outsideMarks(tile) {
    if (plane.outside < 0) return null;
    if (!("outside" in tile.drawn)) {
      const shares = tile.planes[plane.outside];
      const canvas = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
      const context = canvas.getContext("2d");
      const image = context.createImageData(SIDE, SIDE);
      const pixels = new Uint32Array(image.data.buffer);
      let found = false;
      for (let at = 0; at < pixels.length; at++) {
        if (shares[at] !== data.missing && 2 * shares[at] > data.one) {
          pixels[at] = 0xffffffff;
          found = true;
        }
      }
      if (found) context.putImageData(image, 0, 0);
      tile.drawn.outside = found ? canvas : null;
    }
    return tile.drawn.outside;
  }

  // Drawing

  const density = () => window.devicePixelRatio || 1;

  /** The level whose pixels are about as large as those of the screen. */
  function levelShown() {
    return Math.min(data.top, Math.max(0, Math.round(-Math.log2(view.scale * density()))));
  }

  /** Where a tile lies on a canvas, in its own pixels: left, top, right, bottom. */
  function box(canvas, level, row, column) {
    const size = SIDE * 2 ** level;
    const factor = view.scale * density();
    const across = (at) => Math.round((at * size - view.x) * factor + canvas.width / 2);
    const down = (at) => Math.round((at * size - view.y) * factor + canvas.height / 2);
    return [across(column), down(row), across(column + 1), down(row + 1)];
  }

  function visible(canvas, level) {
    const size = SIDE * 2 ** level;
    const reach = (extent) => extent / 2 / density() / view.scale;
    const range = (centre, extent, total) => [
      Math.max(0, Math.floor((centre - reach(extent)) / size)),
      Math.min(Math.ceil(total / size) - 1, Math.floor((centre + reach(extent)) / size)),
    ];
    const [top, bottom] = range(view.y, canvas.height, HEIGHT);
    const [left, right] = range(view.x, canvas.width, WIDTH);
    const found = [];
    for (let row = top; row <= bottom; row++) {
      for (let column = left; column <= right; column++) found.push([row, column]);
    }
    return found;
  }

  /** Draw a tile, or the part of one above it that covers the same place. */
  function drawTile(context, canvas, name, source, level, row, column) {
    const [left, top, right, bottom] = box(canvas, level, row, column);
    const ratio = 2 ** (source.level - level);
    const size = SIDE / ratio;
    const [x, y] = [(column / ratio - source.column) * SIDE, (row / ratio - source.row) * SIDE];
    const place = [x, y, size, size, left, top, right - left, bottom - top];
    context.drawImage(painted(source, name), ...place);
    const outside = choice().outside && name !== "image" ? outsideMarks(source) : null;
    if (outside) drawHatched(context, outside, place);
  }

  const hatching = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });

  /** Draw lines where a mask is white. */
  function drawHatched(context, mask, place) {
    const [, , , , left, top, width, height] = place;
    [hatching.width, hatching.height] = [width, height];
    const layer = hatching.getContext("2d");
    layer.imageSmoothingEnabled = false;
    layer.drawImage(mask, ...place.slice(0, 4), 0, 0, width, height);
    layer.globalCompositeOperation = "source-in";
    layer.lineWidth = 1.5 * density();
    const gap = 6 * density();
    layer.beginPath();
    // Lines meet those of the next tile.
    const start = -height - ((left + top) % gap + gap) % gap;
    for (let x = start; x < width + gap; x += gap) {
      layer.moveTo(x, height);
      layer.lineTo(x + height, 0);
    }
    layer.strokeStyle = "#d6006c";
    layer.stroke();
    context.drawImage(hatching, left, top);
  }

  function above(level, row, column) {
    for (let up = level + 1; up <= data.top; up++) {
      const factor = 2 ** (up - level);
      const found = loading.present(up, Math.floor(row / factor), Math.floor(column / factor));
      if (found) return found;
    }
    return null;
  }

  /** Stripes that show through where pixels are missing. */
  const ground = (function () {
    const side = 8;
    const stripes = Object.assign(document.createElement("canvas"), { width: side, height: side });
    const context = stripes.getContext("2d");
    context.fillStyle = data.ground[0];
    context.fillRect(0, 0, side, side);
    context.strokeStyle = data.ground[1];
    context.beginPath();
    for (const shift of [-side, 0, side]) {
      context.moveTo(shift, side);
      context.lineTo(shift + side, 0);
    }
    context.stroke();
    return context.createPattern(stripes, "repeat");
  })();

  function drawGround(context, canvas) {
    const factor = view.scale * density();
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = ground;
    context.fillRect(
      canvas.width / 2 - view.x * factor, canvas.height / 2 - view.y * factor,
      WIDTH * factor, HEIGHT * factor);
  }

  function drawPane(canvas) {
    const context = canvas.getContext("2d");
    const level = levelShown();
    let whole = true;
    drawGround(context, canvas);
    context.imageSmoothingEnabled = canvas.dataset.pane === "image" && view.scale * density() < 1;
    for (const [row, column] of visible(canvas, level)) {
      const tile = loading.tile(level, row, column);
      if (!tile.ready && !tile.failed) {
        whole = false;
        if (!tile.watched) tile.loaded.then(draw, showError);
        tile.watched = true;
      }
      const source = tile.ready ? tile : above(level, row, column);
      if (source) drawTile(context, canvas, canvas.dataset.pane, source, level, row, column);
    }
    drawMarks(context, canvas);
    return whole;
  }

  function drawMarks(context, canvas) {
    const factor = view.scale * density();
    const place = ([row, column]) => [
      (column - view.x) * factor + canvas.width / 2, (row - view.y) * factor + canvas.height / 2];
    if (marks.chosen) {
      const least = 9 * density();
      const side = Math.max(factor, least);
      const [x, y] = place([marks.chosen[0] + 0.5, marks.chosen[1] + 0.5]);
      for (const [colour, width] of [["#fff", 4.5], ["#b3361b", 2]]) {
        [context.strokeStyle, context.lineWidth] = [colour, width * density()];
        context.strokeRect(x - side / 2, y - side / 2, side, side);
      }
    }
    if (marks.pointer && marks.pointer.canvas !== canvas) {
      const [x, y] = place(marks.pointer.at);
      const reach = 7 * density();
      for (const [colour, width] of [["#fff", 3.5], ["#000", 1.5]]) {
        [context.strokeStyle, context.lineWidth] = [colour, width * density()];
        context.beginPath();
        context.moveTo(x - reach, y);
        context.lineTo(x + reach, y);
        context.moveTo(x, y - reach);
        context.lineTo(x, y + reach);
        context.stroke();
      }
    }
  }

  function showError(error) {
    element("error").textContent = error.message;
    element("error").hidden = false;
    draw();
  }

  function draw() {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      const whole = canvases.filter((canvas) => canvas.clientWidth).map(drawPane);
      element("zoom-text").textContent = zoomText();
      if (whole.every(Boolean)) document.body.dataset.shown = levelShown();
      else delete document.body.dataset.shown;
    });
  }

  function zoomText() {
    const pixels = (number) => Number(number.toPrecision(2)).toLocaleString("en");
    return view.scale >= 1 ? `${pixels(view.scale)}\u00a0x` : `1\u00a0:\u00a0${pixels(1 / view.scale)}`;
  }

  // Moving

  const firstCanvas = () => canvases.find((canvas) => canvas.clientWidth);
  const fitting = () => Math.min(
    firstCanvas().clientWidth / WIDTH, firstCanvas().clientHeight / HEIGHT);

  /** Show a place at a scale, both held within limits. */
  function show(x, y, scale) {
    const least = Math.min(fitting(), 1);
    view.scale = Math.min(LARGEST_SCALE, Math.max(least, scale));
    view.x = Math.min(WIDTH, Math.max(0, x));
    view.y = Math.min(HEIGHT, Math.max(0, y));
    clearTimeout(naming);
    naming = setTimeout(nameInAddress, NAMING_DELAY);
    draw();
  }

  function nameInAddress() {
    const text = [view.y, view.x].map((at) => at.toFixed(1)).concat(view.scale.toPrecision(4));
    history.replaceState(null, "", `#${text.join(",")}`);
  }

  const fit = () => show(WIDTH / 2, HEIGHT / 2, Math.min(fitting(), LARGEST_SCALE));

  /** Zoom by a factor, while a point of a canvas (screen pixels from its centre) stays. */
  function zoom(factor, [dx, dy] = [0, 0]) {
    const least = Math.min(fitting(), 1);
    const scale = Math.min(LARGEST_SCALE, Math.max(least, view.scale * factor));
    const shift = 1 / view.scale - 1 / scale;
    show(view.x + dx * shift, view.y + dy * shift, scale);
  }

  function fromCentre(canvas, event) {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    return [event.clientX - left - width / 2, event.clientY - top - height / 2];
  }

  /** Row and column of a place in the image, with fractions, or null outside. */
  function place(canvas, event) {
    const [dx, dy] = fromCentre(canvas, event);
    const [row, column] = [view.y + dy / view.scale, view.x + dx / view.scale];
    return row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH ? [row, column] : null;
  }

  function pointAt(canvas, event) {
    const at = place(canvas, event);
    marks.pointer = at && { canvas, at };
    element("position").textContent = at ? positionText(Math.floor(at[0]), Math.floor(at[1])) : "\u00a0";
    draw();
  }

  /** A pixel in words: its row and column from one, and the coordinates of its centre. */
  function positionText(row, column) {
    let text = `row ${row + 1}, column ${column + 1}`;
    if (data.grid) {
      const [a, b, c, d, e, f] = data.grid.transform;
      const [x, y] = [column + 0.5, row + 0.5];
      const digits = Math.abs(a) < 0.1 ? 5 : Math.abs(a) < 10 ? 1 : 0;
      text += `; x ${(a * x + b * y + c).toFixed(digits)}, y ${(d * x + e * y + f).toFixed(digits)}`;
    }
    return text;
  }

  function listen(canvas) {
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 30 : 1;
      zoom(2 ** (-lines * event.deltaY / 240), fromCentre(canvas, event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
      if (pointers.size === 1) moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return pointAt(canvas, event);
      const now = [event.clientX, event.clientY];
      const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
      moved += Math.hypot(dx, dy);
      const others = [...pointers].filter(([id]) => id !== event.pointerId);
      pointers.set(event.pointerId, now);
      if (others.length) {
        const [, [x, y]] = others[0];
        const spread = ([a, b]) => Math.max(10, Math.hypot(a - x, b - y));
        const middle = { clientX: (now[0] + x) / 2, clientY: (now[1] + y) / 2 };
        zoom(spread(now) / spread(before), fromCentre(canvas, middle));
        show(view.x - dx / 2 / view.scale, view.y - dy / 2 / view.scale, view.scale);
      } else if (moved > CLICK_DISTANCE) {
        show(view.x - dx / view.scale, view.y - dy / view.scale, view.scale);
      }
    });
    const lift = (event) => {
      const alone = pointers.delete(event.pointerId) && pointers.size === 0;
      if (event.type === "pointercancel") moved = Infinity;
      if (!alone || moved > CLICK_DISTANCE) return;
      const at = place(canvas, event);
      if (at) choose(Math.floor(at[0]), Math.floor(at[1]));
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => { marks.pointer = null; draw(); });
    canvas.addEventListener("keydown", (event) => {
      const step = 0.2 * Math.min(canvas.clientWidth, canvas.clientHeight) / view.scale;
      const moves = {
        ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step],
      };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in moves) show(view.x + moves[event.key][0], view.y + moves[event.key][1], view.scale);
      else if (event.key === "+" || event.key === "=") zoom(2);
      else if (event.key === "-") zoom(0.5);
      else if (event.key === "0") fit();
      else if (event.key === "Enter") choose(Math.floor(view.y), Math.floor(view.x));
      else return;
      event.preventDefault();
    });
  }

  function resize() {
    for (const canvas of canvases) {
      canvas.width = Math.round(canvas.clientWidth * density());
      canvas.height = Math.round(canvas.clientHeight * density());
    }
    if (view.scale) show(view.x, view.y, view.scale);
  }

  /** Show one pane alone and large, or all again. */
  function enlarge(button) {
    const figure = button.closest("figure");
    const alone = figure.classList.toggle("alone");
    for (const each of document.querySelectorAll("figure.pane")) {
      each.hidden = alone && each !== figure;
    }
    button.setAttribute("aria-pressed", alone);
    resize();
  }

  function start(chosen) {
    choose = chosen;
    canvases.forEach(listen);
    resize();
    const given = location.hash.slice(1).split(",").map(Number);
    if (given.length === 3 && given.every(Number.isFinite)) show(given[1], given[0], given[2]);
    else fit();
    new ResizeObserver(resize).observe(document.querySelector(".panes"));
    element("zoom-in").onclick = () => zoom(2);
    element("zoom-out").onclick = () => zoom(0.5);
    element("fit").onclick = fit;
    element("every-pixel").onclick = () => show(view.x, view.y, 1 / density());
    for (const button of document.querySelectorAll(".enlarge")) {
      button.onclick = () => enlarge(button);
    }
  }

  /** Mark a pixel in all panes; move there if it is not in view. */
  function mark(row, column) {
    marks.chosen = [row, column];
    const canvas = firstCanvas();
    const away = (at, centre, extent) => Math.abs(at - centre) * view.scale > extent / 2;
    if (away(column, view.x, canvas.clientWidth) || away(row, view.y, canvas.clientHeight)) {
      show(column + 0.5, row + 0.5, view.scale);
    } else draw();
  }

  return {
    view, start, draw, mark, positionText, probabilityByte, entropy, deviation, plane,
  };
})();
