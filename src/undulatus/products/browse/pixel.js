/* One pixel through time. Its probabilities are in a script per row, loaded when needed. */
"use strict";

/* Called by the scripts of the rows: a page from disk may load scripts but not fetch data. */
window.undulatusRow = function (row, pieces) {
  window.undulatusPixel.receiveRow(row, pieces);
};

window.undulatusPixel = (function () {
  const data = window.undulatusData;
  const { DAY, bytes, seconds, firstDay, day, days, firstOf, date } = window.undulatusCalendar;
  const [height, width] = data.shape;
  const land = data.land && bytes(data.land);
  const element = (id) => document.getElementById(id);
  const state = { row: -1, column: -1, loadedRow: -1, pieces: [], values: null };
  let plotModels = {};

  function receiveRow(row, pieces) {
    state.loadedRow = row;
    state.pieces = pieces.map(bytes);
  }

  function loadRow(row) {
    if (state.loadedRow === row) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `rows/${row}.js`;
      script.onload = resolve;
      script.onerror = reject;
      document.head.append(script);
      script.remove();
    });
  }

  /** Show the series of a pixel; throws if its row cannot be loaded. */
  async function choose(row, column) {
    [state.row, state.column] = [row, column];
    [element("row").value, element("column").value] = [row + 1, column + 1];
    for (const box of document.querySelectorAll(".frame rect")) {
      box.setAttribute("x", column);
      box.setAttribute("y", row);
    }
    const surface = land ? (land[row * width + column] ? ", on land" : ", on water") : "";
    element("pixel-description").textContent = `Row ${row + 1}, column ${column + 1}${surface}.`;
    await loadRow(row);
    // While this row was loading, another pixel may have been chosen or another row loaded.
    if (state.row !== row || state.column !== column) return;
    if (state.loadedRow !== row) return choose(row, column);
    state.values = new Float64Array(seconds.length);
    let n = 0;
    for (const piece of state.pieces) {
      for (let at = column; at < piece.length; at += width) {
        state.values[n++] = piece[at] === 255 ? NaN : piece[at] / 254;
      }
    }
    drawAllDays();
  }

  function drawAllDays() {
    const [x, y] = [[], []];
    for (let d = 0; d < days; d++) {
      const known = state.values.slice(firstOf[d], firstOf[d + 1]).filter((v) => !Number.isNaN(v));
      x.push(1000 * ((firstDay + d) * DAY + DAY / 2));
      y.push(known.length ? known.reduce((sum, v) => sum + v, 0) / known.length : NaN);
    }
    plotModels["series-all-values"].data = { x: seconds.map((s) => 1000 * s), y: state.values };
    plotModels["series-all-means"].data = { x, y };
    document.body.dataset.pixel = `${state.row} ${state.column}`;
  }

  /** Draw the day of an acquisition, and mark the acquisition in both plots. */
  function follow(number) {
    if (!state.values || number < 0) return;
    const d = day[number];
    const [x, y] = [[], []];
    for (let n = firstOf[d]; n < firstOf[d + 1]; n++) {
      const hours = (seconds[n] % DAY) / 3600;
      // The line breaks where acquisitions are missing.
      if (x.length && (hours - x[x.length - 1]) * 3600 > 1.5 * data.step) {
        x.push(hours);
        y.push(NaN);
      }
      x.push(hours);
      y.push(state.values[n]);
    }
    plotModels["series-day-values"].data = { x, y };
    const now = state.values[number];
    const value = Number.isNaN(now) ? "missing" : now.toFixed(2);
    element("series-day-title").textContent = `${date(number)}: every acquisition of the day`;
    element("series-day").setAttribute(
      "aria-label", `Probability of cloud at the pixel on ${date(number)}; now ${value}`);
    element("series-all").setAttribute("aria-label", "Probability of cloud at the pixel, all days");
    plotModels["series-day-now"].location = (seconds[number] % DAY) / 3600;
    plotModels["series-all-now"].location = 1000 * seconds[number];
  }

  /** Row and column of the pixel that was clicked, or null outside the images. */
  function clicked(event) {
    const canvas = event.target.closest("canvas[data-panel]");
    if (!canvas) return null;
    const box = canvas.getBoundingClientRect();
    const inside = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    return [
      inside((event.clientY - box.top) / box.height, height),
      inside((event.clientX - box.left) / box.width, width),
    ];
  }

  /** Row and column that were typed, or null if they are not those of a pixel. */
  function typed() {
    const boxes = [element("row"), element("column")];
    const valid = boxes.every((box) => box.value && box.checkValidity());
    return valid ? boxes.map((box) => Math.floor(box.value) - 1) : null;
  }

  const drawIn = (models) => { plotModels = models; };
  return { receiveRow, choose, follow, clicked, typed, drawIn };
})();
