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
  // A series for each class, or one of cloud.
  const classes = data.classes.length ? data.classes : ["cloud"];
  const element = (id) => document.getElementById(id);
  const state = { row: -1, column: -1, loadedRow: -1, pieces: [], series: null };
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
    state.series = classes.map(() => new Float64Array(seconds.length));
    let n = 0;
    for (const piece of state.pieces) {
      for (let at = column * classes.length; at < piece.length; at += width * classes.length) {
        state.series.forEach((values, place) => {
          values[n] = piece[at + place] === 255 ? NaN : piece[at + place] / 254;
        });
        n++;
      }
    }
    drawAllDays();
  }

  function mean(values, first, end) {
    const known = values.slice(first, end).filter((v) => !Number.isNaN(v));
    return known.length ? known.reduce((sum, v) => sum + v, 0) / known.length : NaN;
  }

  function drawAllDays() {
    const noons = Array.from({ length: days }, (_, d) => 1000 * ((firstDay + d) * DAY + DAY / 2));
    const means = state.series.map((values) =>
      noons.map((_, d) => mean(values, firstOf[d], firstOf[d + 1])));
    const times = seconds.map((s) => 1000 * s);
    if (data.classes.length) {
      plotModels["series-all-values"].data =
        data.few_days ? stacked(Array.from(times), state.series) : stacked(noons, means);
    } else {
      plotModels["series-all-values"].data = { x: times, y: state.series[0] };
      plotModels["series-all-means"].data = { x: noons, y: means[0] };
    }
    document.body.dataset.pixel = `${state.row} ${state.column}`;
  }

  /** Edges of the classes' probabilities, stacked from 0 to 1; times without any are left out. */
  function stacked(x, series) {
    const known = x.map((_, at) => at).filter((at) => !Number.isNaN(series[0][at]));
    const columns = { x: known.map((at) => x[at]) };
    let edge = known.map(() => 0);
    // Bytes do not quite sum to one.
    const sums = known.map((at) => series.reduce((sum, values) => sum + values[at], 0));
    columns.edge0 = edge;
    series.forEach((values, place) => {
      edge = known.map((at, i) => edge[i] + values[at] / sums[i]);
      columns[`edge${place + 1}`] = edge;
    });
    return columns;
  }

  /** The probabilities of the likeliest classes at an acquisition, as text. */
  function valueText(number) {
    if (Number.isNaN(state.series[0][number])) return "missing";
    const values = state.series.map((each, place) => [each[number], classes[place]]);
    if (!data.classes.length) return values[0][0].toFixed(2);
    values.sort((one, other) => other[0] - one[0]);
    return values.slice(0, 3).map(([value, name]) => `${name} ${value.toFixed(2)}`).join(", ");
  }

  /** Draw the day of an acquisition, and mark the acquisition in both plots. */
  function follow(number) {
    if (!state.series || number < 0) return;
    const [first, end] = [firstOf[day[number]], firstOf[day[number] + 1]];
    const hours = Array.from(seconds.slice(first, end), (s) => (s % DAY) / 3600);
    const ofDay = state.series.map((values) => values.slice(first, end));
    plotModels["series-day-values"].data =
      data.classes.length ? stacked(hours, ofDay) : broken(hours, ofDay[0]);
    const value = valueText(number);
    const what = data.classes.length ? "Probabilities of the classes" : "Probability of cloud";
    element("series-day-title").textContent = `${date(number)}: every acquisition of the day`;
    element("pixel-now").textContent = data.classes.length ? `Now: ${value}.` : "";
    element("series-day").setAttribute(
      "aria-label", `${what} at the pixel on ${date(number)}; now ${value}`);
    element("series-all").setAttribute("aria-label", `${what} at the pixel, all days`);
    plotModels["series-day-now"].location = (seconds[number] % DAY) / 3600;
    plotModels["series-all-now"].location = 1000 * seconds[number];
  }

  /** A line that breaks where acquisitions are missing. */
  function broken(hours, values) {
    const [x, y] = [[], []];
    hours.forEach((hour, at) => {
      if (x.length && (hour - x[x.length - 1]) * 3600 > 1.5 * data.step) {
        x.push(hour);
        y.push(NaN);
      }
      x.push(hour);
      y.push(values[at]);
    });
    return { x, y };
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
