/* The browser: one acquisition is chosen, and all parts of the page show it. */
"use strict";

(function () {
  const data = window.undulatusData;
  const {
    DAY, numbers, seconds, firstDay, day, slots, firstOf,
    stamp, timeText, date, nearest, sameTimeOnDay, inCell,
  } = window.undulatusCalendar;
  const pixel = window.undulatusPixel;
  const [height, width] = data.shape;
  const CACHED_DAYS = 4;
  const MOST_CLASSES = 6; // in a line of text
  const element = (id) => document.getElementById(id);

  const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;

  const shares = {};
  for (const name in data.shares) shares[name] = numbers(Float32Array, data.shares[name]);
  const texts = {};
  for (const name in data.texts) {
    const indices = numbers(Uint32Array, data.texts[name].indices);
    texts[name] = (number) => data.texts[name].lines[indices[number]];
  }
  const state = { number: -1, timer: 0, playing: false, share: data.opening_share };
  const plotModels = {};

  // Images

  const images = new Map();

  function loadDay(number) {
    const key = date(number);
    if (!images.has(key)) {
      const loaded = Object.keys(data.titles).map(async (name) => {
        const image = new Image();
        image.src = `days/${key}-${name}.webp`;
        await image.decode();
        return [name, image];
      });
      images.set(key, Promise.all(loaded).then(Object.fromEntries));
      images.get(key).catch(() => images.delete(key));
      if (images.size > CACHED_DAYS) images.delete(images.keys().next().value);
    }
    return images.get(key);
  }

  function draw(number, sheets) {
    const index = number - firstOf[day[number]];
    const left = (index % data.columns) * width;
    const top = Math.floor(index / data.columns) * height;
    for (const canvas of document.querySelectorAll("canvas[data-panel]")) {
      const name = canvas.dataset.panel;
      const night = name === "rgb" && texts.rgb(number) !== "" && "ir" in sheets;
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, width, height);
      context.drawImage(sheets[night ? "ir" : name], left, top, width, height, 0, 0, width, height);
      const note = canvas.parentElement.querySelector(".note");
      note.textContent = night ? "night: infrared shown" : name in texts ? texts[name](number) : "";
      note.hidden = note.textContent === "";
      canvas.setAttribute("aria-label", panelLabel(name, number, note.textContent));
    }
    document.body.dataset.shown = stamp(number);
  }

  // Texts

  const shareText = (name, number) =>
    Number.isNaN(shares[name][number]) ? "unknown" : percent(shares[name][number]);

  /** The classes of an acquisition with their shares, the largest first. */
  function classText(who, number) {
    const found = data.classes.map((name, place) => [shares[`${who}-${place}`][number], name]);
    const present = found.filter(([share]) => share > 0).sort((one, other) => other[0] - one[0]);
    const rest = present.splice(MOST_CLASSES).reduce((sum, [share]) => sum + share, 0);
    if (rest) present.push([rest, "others"]);
    return present.map(([share, name]) => `${name} ${percent(share)}`).join(", ") || "unknown";
  }

  function panelLabel(name, number, note) {
    const cloudShare = { l2: "l2_cloud", model: "cloud" }[name];
    let share = cloudShare && shares[cloudShare] ? `, ${shareText(cloudShare, number)} cloud` : "";
    if (shares[`${name}-0`]) share = `, ${classText(name, number)}`;
    return `${data.titles[name]}, ${timeText(number)}${share}${note ? `, ${note}` : ""}`;
  }

  function describe(number) {
    const regime = texts.regime(number);
    const lines = [[texts.sun(number), regime && `regime: ${regime}`].filter(Boolean).join("; ")];
    if (data.classes.length) return [...lines, ...describeClasses(number)].filter(Boolean);
    let line = `Cloud: model ${shareText("cloud", number)}`;
    if (shares.agreement) {
      line += `, L2 ${shareText("l2_cloud", number)} of the pixels. `;
      line += Number.isNaN(shares.agreement[number])
        ? "They have no pixel in common."
        : `They agree on ${shareText("agreement", number)}.`;
    } else line += " of the pixels.";
    lines.push(line);
    if (shares.model_right) {
      const l2 = shares.l2_right ? `, L2 ${shareText("l2_right", number)}` : "";
      lines.push(`Agreement with the truth: model ${shareText("model_right", number)}${l2}.`);
    }
    return lines.filter(Boolean);
  }

  function describeClasses(number) {
    const model = `Model: ${classText("model", number)} of the pixels.`;
    if (!shares.agreement) return [model];
    const agree = Number.isNaN(shares.agreement[number])
      ? "They have no pixel in common."
      : `They agree on ${shareText("agreement", number)}.`;
    return [model, `Label: ${classText("label", number)}. ${agree}`];
  }

  function showError(text) {
    element("error").textContent = text;
    element("error").hidden = !text;
  }

  // Choosing an acquisition

  async function choose(number) {
    if (number === state.number) return;
    state.number = number;
    element("time").textContent = timeText(number);
    element("description").innerHTML = "";
    for (const text of describe(number)) {
      const line = document.createElement("div");
      line.textContent = text;
      element("description").append(line);
    }
    history.replaceState(null, "", `#${stamp(number)}`);
    markChosen();
    for (const button of document.querySelectorAll("#differences button")) {
      if (Number(button.dataset.number) === number) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
    try {
      const sheets = await loadDay(number);
      showError("");
      if (state.number === number) draw(number, sheets);
    } catch (error) {
      showError(`The images of ${date(number)} could not be read: is the folder "days" complete?`);
      pause();
    }
  }

  const step = (by) => choose(Math.min(Math.max(state.number + by, 0), seconds.length - 1));
  const stepDay = (direction) => choose(sameTimeOnDay(state.number, direction));

  function stepDifference(by) {
    const count = data.differences.length;
    if (!count) return;
    const at = data.differences.indexOf(state.number);
    choose(data.differences[at < 0 ? 0 : (at + by + count) % count]);
  }

  function fromHash() {
    const text = decodeURIComponent(location.hash.slice(1));
    const time = Date.parse(`${text.length === 10 ? `${text}T12:00` : text}Z`) / 1000;
    return Number.isNaN(time) ? data.opening : nearest(time);
  }

  /** Mark the chosen acquisition in the plots. */
  function markChosen() {
    if (!plotModels.chosen || state.number < 0) return;
    const hours = (slots[state.number] + 0.5) * (data.step / 3600);
    const noon = 1000 * DAY * (firstDay + day[state.number] + 0.5);
    plotModels.chosen.data = { x: [hours], y: [noon] };
    pixel.follow(state.number);
  }

  /** Colour the cells by the share of a class, from none to the largest, in whole tenths. */
  function showShare(name) {
    state.share = name;
    const cells = plotModels.cells;
    const table = cells.data.image[0].fill(NaN);
    // Backwards, so that the first acquisition of a cell is written last.
    for (let n = seconds.length - 1; n >= 0; n--) {
      table[day[n] * data.table[1] + slots[n]] = shares[name][n];
    }
    cells.change.emit();
    const largest = table.reduce((most, share) => (share > most ? share : most), 0);
    plotModels["share-colours"].high = Math.max(Math.ceil(10 * largest) / 10, 0.1);
    element("heatmap").setAttribute("aria-label", `Share of ${shareName()} by day and time of day`);
  }

  const shareName = () => data.classes[state.share.split("-")[1]] || "cloud";

  async function choosePixel(place) {
    if (!place) return;
    try {
      await pixel.choose(...place);
      markChosen();
    } catch (error) {
      showError(`The series of row ${place[0] + 1} could not be read: is the folder "rows" complete?`);
    }
  }

  // Playing

  async function playNext() {
    if (!state.playing) return;
    if (state.number === seconds.length - 1) return pause();
    const next = state.number + 1;
    await choose(next);
    // Load the next day ahead of time.
    if (firstOf[day[next] + 1] < seconds.length) loadDay(firstOf[day[next] + 1]).catch(() => {});
    if (state.playing) state.timer = setTimeout(playNext, 1000 / Number(element("speed").value));
  }

  function setPlaying(playing) {
    state.playing = playing;
    clearTimeout(state.timer);
    element("play").textContent = playing ? "Pause" : "Play";
    element("play").setAttribute("aria-pressed", String(playing));
    // A screen reader cannot keep up with reading out every image.
    element("description").setAttribute("aria-live", playing ? "off" : "polite");
  }
  const pause = () => setPlaying(false);
  function togglePlaying() {
    setPlaying(!state.playing);
    playNext();
  }

  // Keyboard, buttons, mouse

  const keys = {
    ArrowLeft: () => step(-1),
    ArrowRight: () => step(1),
    ArrowUp: () => stepDay(-1),
    ArrowDown: () => stepDay(1),
    Home: (event) => choose(event.ctrlKey ? 0 : firstOf[day[state.number]]),
    End: (event) => choose(event.ctrlKey ? seconds.length - 1 : firstOf[day[state.number] + 1] - 1),
    j: () => stepDifference(1),
    k: () => stepDifference(-1),
    " ": () => togglePlaying(),
  };

  function onKey(event) {
    const at = event.target;
    if (event.altKey || event.metaKey || (event.ctrlKey && !["Home", "End"].includes(event.key))) return;
    if (at.closest("input, select") || (event.key === " " && at.closest("button"))) return;
    if (!(event.key in keys)) return;
    event.preventDefault();
    if (event.key !== " ") pause();
    keys[event.key](event);
  }

  function listDifferences() {
    for (const number of data.differences) {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.number = number;
      for (const text of [timeText(number), percent(1 - shares.agreement[number])]) {
        const part = document.createElement("span");
        part.textContent = text;
        button.append(part);
      }
      button.addEventListener("click", () => { pause(); choose(number); });
      const item = document.createElement("li");
      item.append(button);
      element("differences").append(item);
    }
  }

  function listen() {
    const onClick = (id, act) => element(id).addEventListener("click", () => { pause(); act(); });
    onClick("earlier", () => step(-1));
    onClick("later", () => step(1));
    onClick("day-before", () => stepDay(-1));
    onClick("day-after", () => stepDay(1));
    onClick("next-difference", () => stepDifference(1));
    element("play").addEventListener("click", togglePlaying);
    const chooser = element("share-of");
    if (chooser) chooser.addEventListener("change", () => showShare(chooser.value));
    for (const name of ["row", "column"]) {
      element(name).addEventListener("change", () => choosePixel(pixel.typed()));
    }
    document.addEventListener("keydown", onKey);
    const panels = document.querySelector(".panels");
    panels.addEventListener("click", (event) => choosePixel(pixel.clicked(event)));
    window.addEventListener("hashchange", () => choose(fromHash()));
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) element("speed").value = "1";
  }

  // Functions that the plots call.
  window.undulatus = {
    chooseCell(hours, milliseconds) {
      pause();
      const number = inCell(hours, milliseconds);
      const time = Math.floor(milliseconds / 1000 / DAY) * DAY + hours * 3600;
      choose(number < 0 ? nearest(time) : number);
    },
    describeCell(hours, milliseconds) {
      const number = inCell(hours, milliseconds);
      return number < 0 ? "no acquisition" : `${timeText(number)}: ${shareText(state.share, number)} ${shareName()}`;
    },
    chooseHour(hours) {
      pause();
      const d = day[state.number];
      choose(nearest((firstDay + d) * DAY + hours * 3600, firstOf[d], firstOf[d + 1]));
    },
    chooseDate(milliseconds) {
      pause();
      const start = Math.floor(milliseconds / 1000 / DAY) * DAY;
      choose(nearest(start + (seconds[state.number] % DAY)));
    },
  };

  async function open() {
    listDifferences();
    listen();
    choose(fromHash());
    for (const name in window.undulatusPlots) {
      await window.Bokeh.embed.embed_item(window.undulatusPlots[name]);
    }
    for (const name of ["cells", "share-colours", "chosen", "series-day-values", "series-day-now", "series-all-values",
      "series-all-means", "series-all-now"]) {
      for (const plot of window.Bokeh.documents) {
        plotModels[name] = plotModels[name] || plot.get_model_by_name(name);
      }
    }
    if (data.classes.length) showShare(state.share);
    pixel.drawIn(plotModels);
    markChosen();
    await choosePixel([height >> 1, width >> 1]);
    document.body.dataset.ready = "true";
  }

  open();
})();
