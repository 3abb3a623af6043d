/* One pixel through time: its probabilities are loaded by rows of the image, when asked for. */
"use strict";

/* Scripts of rows call it: pages from disk may not fetch data, but they may load scripts. */
window.undulatusRow = function (row, pieces) {
  window.undulatusPixel.rowIs(row, pieces);
};

window.undulatusPixel = (function () {
  const year = window.undulatusYear;
  const { DAY, bytes, seconds, firstDay, day, days, firstOf, date } = window.undulatusCalendar;
  const [height, width] = year.shape;
  const land = year.land && bytes(year.land);
  const place = (id) => document.getElementById(id);
  const state = { row: -1, column: -1, loaded: -1, pieces: [], values: null };
  let models = {};

  function rowIs(row, pieces) {
    state.loaded = row;
    state.pieces = pieces.map(bytes);
  }

  function loadRow(row) {
    if (state.loaded === row) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `rows/${row}.js`;
      script.onload = resolve;
      script.onerror = reject;
      document.head.append(script);
      script.remove();
    });
  }

  /** Show the series of a pixel; throws if they cannot be read. */
  async function choose(row, column) {
    [state.row, state.column] = [row, column];
    [place("row").value, place("column").value] = [row + 1, column + 1];
    for (const box of document.querySelectorAll(".frame rect")) {
      box.setAttribute("x", column);
      box.setAttribute("y", row);
    }
    const surface = land ? (land[row * width + column] ? ", on land" : ", on water") : "";
    place("pixel-words").textContent = `Row ${row + 1}, column ${column + 1}${surface}.`;
    await loadRow(row);
    // Another may have been chosen meanwhile, or the row of another been loaded later.
    if (state.row !== row || state.column !== column) return;
    if (state.loaded !== row) return choose(row, column);
    state.values = new Float64Array(seconds.length);
    let n = 0;
    for (const piece of state.pieces) {
      for (let at = column; at < piece.length; at += width) {
        state.values[n++] = piece[at] === 255 ? NaN : piece[at] / 254;
      }
    }
    drawYear();
  }

  function drawYear() {
    const [x, y] = [[], []];
    for (let d = 0; d < days; d++) {
      const known = state.values.slice(firstOf[d], firstOf[d + 1]).filter((v) => !Number.isNaN(v));
      x.push(1000 * ((firstDay + d) * DAY + DAY / 2));
      y.push(known.length ? known.reduce((sum, v) => sum + v, 0) / known.length : NaN);
    }
    models["series-year-values"].data = { x: seconds.map((s) => 1000 * s), y: state.values };
    models["series-year-means"].data = { x, y };
    document.body.dataset.pixel = `${state.row} ${state.column}`;
  }

  /** Show the day of an acquisition, and the acquisition in it and in the year. */
  function follow(number) {
    if (!state.values || number < 0) return;
    const d = day[number];
    const [x, y] = [[], []];
    for (let n = firstOf[d]; n < firstOf[d + 1]; n++) {
      const hours = (seconds[n] % DAY) / 3600;
      // The line breaks where acquisitions are missing.
      if (x.length && (hours - x[x.length - 1]) * 3600 > 1.5 * year.step) {
        x.push(hours);
        y.push(NaN);
      }
      x.push(hours);
      y.push(state.values[n]);
    }
    models["series-day-values"].data = { x, y };
    const now = state.values[number];
    const value = Number.isNaN(now) ? "missing" : now.toFixed(2);
    place("series-day-title").textContent = `${date(number)}: every acquisition of the day`;
    place("series-day").setAttribute(
      "aria-label", `Probability of cloud of the pixel on ${date(number)}; now ${value}`);
    place("series-year").setAttribute("aria-label", "Probability of cloud of the pixel, all days");
    models["series-day-now"].location = (seconds[number] % DAY) / 3600;
    models["series-year-now"].location = 1000 * seconds[number];
  }

  function onPanel(event) {
    const canvas = event.target.closest("canvas[data-panel]");
    if (!canvas) return null;
    const box = canvas.getBoundingClientRect();
    const inside = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    return [
      inside((event.clientY - box.top) / box.height, height),
      inside((event.clientX - box.left) / box.width, width),
    ];
  }

  function typed() {
    const boxes = [place("row"), place("column")];
    const sound = boxes.every((box) => box.value && box.checkValidity());
    return sound ? boxes.map((box) => Math.floor(box.value) - 1) : null;
  }

  const draws = (found) => { models = found; };
  return { rowIs, choose, follow, onPanel, typed, draws };
})();
