/* The chosen pixel, the legend and the choices; starts the page. */
"use strict";

(function () {
  const data = window.undulatusMap;
  const loading = window.undulatusLoading;
  const panes = window.undulatusPanes;
  const spectrum = window.undulatusSpectrum;
  const element = (id) => document.getElementById(id);
  const chosen = { row: -1, column: -1 };

  const percent = (share) => (share > 0 && share < 0.005 ? "< 1" : Math.round(100 * share)) + "\u00a0%";
  const rounded = (value) => String(Number(value.toPrecision(2)));

  function showError(error) {
    element("error").textContent = error.message;
    element("error").hidden = false;
  }

  function made(name, classes, text = "") {
    const found = document.createElement(name);
    found.className = classes;
    found.textContent = text;
    return found;
  }

  function swatch(colour) {
    const found = made("i", "swatch");
    found.style.background = colour;
    return found;
  }

  // A pixel

  async function choose(row, column) {
    [chosen.row, chosen.column] = [row, column];
    [element("row").value, element("column").value] = [row + 1, column + 1];
    panes.mark(row, column);
    try {
      const values = await loading.pixelBytes(row, column);
      const found = data.spectra ? await loading.spectrum(row, column) : null;
      if (chosen.row !== row || chosen.column !== column) return;
      element("pixel").hidden = false;
      element("pixel-hint").hidden = true;
      describe(values, row, column);
      if (found) drawSpectrum(found, values[0]);
      document.body.dataset.pixel = `${row} ${column}`;
    } catch (error) {
      showError(error);
    }
  }

  function describe(values, row, column) {
    const planes = values.map((value) => [value]);
    const code = values[0];
    const known = code !== data.missing;
    element("pixel-position").textContent = panes.positionText(row, column);
    const name = element("pixel-class");
    name.textContent = known ? data.classes[code].name : "no class";
    if (known) name.prepend(swatch(data.classes[code].colour));
    element("pixel-probabilities").replaceChildren(
      ...(known && panes.plane.probability > 0 ? bars(planes, code) : []));
    element("pixel-uncertainty").textContent = known ? uncertaintyText(planes, values) : "";
    element("pixel-outside").hidden = !(known && panes.plane.outside > 0 && values[panes.plane.outside] > 0);
  }

  /** A bar for each class: its name, its probability. */
  function bars(planes, code) {
    return data.classes.map(({ name, colour }, index) => {
      const share = panes.probabilityByte(planes, index, 0) / data.one;
      const row = made("li", index === code ? "given" : "");
      row.dataset.probability = share.toFixed(4);
      const label = made("span", "name", name);
      label.prepend(swatch(colour));
      const bar = made("span", "track");
      const filled = made("span", "filled");
      filled.style.width = `${100 * share}%`;
      bar.append(filled);
      row.append(label, bar, made("span", "value", percent(share)));
      return row;
    });
  }

  function uncertaintyText(planes, values) {
    const parts = [];
    const byte = values[panes.plane.deviation];
    if (data.deviation && byte !== undefined && byte !== data.missing) {
      parts.push(`standard deviation of the latent function ${rounded(panes.deviation(byte))}`);
    }
    if (panes.plane.probability > 0) {
      const most = Math.log(data.classes.length);
      parts.push(`entropy ${panes.entropy(planes, 0).toFixed(2)} of at most ${most.toFixed(2)} nats`);
    }
    const text = parts.join(", ");
    return text && `${text[0].toUpperCase()}${text.slice(1)}.`;
  }

  function drawSpectrum({ row, column, values }, code) {
    const { bands, units } = data.spectra;
    const quantiles = data.profiles && code !== data.missing ? data.profiles.values[code] : null;
    const svg = element("spectrum");
    spectrum.draw(svg, { bands, values, quantiles, units });
    const text = bands.map((name, n) =>
      `${name} ${values[n] === null ? "missing" : spectrum.number(values[n])}`);
    svg.setAttribute("aria-label", `Spectrum of the pixel: ${text.join(", ")}`);
    svg.dataset.values = JSON.stringify(values);
    const nearest = row === chosen.row && column === chosen.column;
    element("spectrum-place").textContent = nearest ? "" :
      `Spectrum of the nearest pixel that is kept: row ${row + 1}, column ${column + 1}.`;
    element("spectrum-key").hidden = !quantiles;
    if (quantiles) element("spectrum-class").textContent = data.classes[code].name;
  }

  function typed() {
    const boxes = [element("row"), element("column")];
    if (boxes.every((box) => box.value && box.checkValidity())) {
      choose(...boxes.map((box) => Math.floor(box.value) - 1));
    }
  }

  // Choices

  function describeScales() {
    const probability = element("probability-choice");
    if (!probability) return;
    const shown = probability.value === "shown";
    const classes = data.classes.length;
    element("probability-low").textContent = shown ? `1/${classes}` : "0";
    element("probability-middle").textContent = shown ? "" : "0.5";
    const entropy = element("uncertainty-choice").value === "entropy";
    const { low, high } = data.deviation ?? {};
    const ends = entropy ? ["0", `${Math.log(classes).toFixed(2)} nats`] : [`≤ ${rounded(low)}`, `≥ ${rounded(high)}`];
    element("uncertainty-low").textContent = ends[0];
    element("uncertainty-middle").textContent = entropy ? "" : rounded(Math.sqrt(low * high));
    element("uncertainty-high").textContent = ends[1];
    element("uncertainty-note").textContent = entropy ? "" : "logarithmic";
    for (const row of document.querySelectorAll(".legend button")) {
      row.setAttribute("aria-pressed", row.dataset.class === probability.value);
    }
  }

  /** Colour the bar of a pane from the table of its scale. */
  function drawBar(name, table) {
    const bar = document.querySelector(`.bar.${name}`);
    if (!bar) return;
    const colours = loading.bytes(table);
    const stops = [...Array(33).keys()].map((n) => `rgb(${colours.subarray(4 * Math.min(255, 8 * n)).slice(0, 3)})`);
    bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  }

  function listen() {
    const change = () => { describeScales(); panes.draw(); };
    for (const id of ["probability-choice", "uncertainty-choice", "outside-choice"]) {
      if (element(id)) element(id).onchange = change;
    }
    for (const button of document.querySelectorAll(".legend button")) {
      button.onclick = () => {
        element("probability-choice").value = button.dataset.class;
        change();
      };
    }
    element("row").onchange = typed;
    element("column").onchange = typed;
  }

  const uncertainty = element("uncertainty-choice");
  if (uncertainty && !data.deviation) uncertainty.value = "entropy";
  listen();
  describeScales();
  drawBar("probability", data.colours.probability);
  drawBar("uncertainty", data.colours.uncertainty);
  panes.start(choose);
  document.body.dataset.ready = "true";
})();
