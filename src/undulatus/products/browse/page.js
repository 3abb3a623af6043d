/* The browser: one acquisition is chosen, and all parts of the page follow it. */
"use strict";

(function () {
  const year = window.undulatusYear;
  const {
    DAY, numbers, seconds, firstDay, day, slots, firstOf, stamp, told, date, nearest, onDay, cellAt,
  } = window.undulatusCalendar;
  const pixel = window.undulatusPixel;
  const [height, width] = year.shape;
  const CACHED_DAYS = 4;
  const place = (id) => document.getElementById(id);

  const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;

  const shares = {};
  for (const name in year.shares) shares[name] = numbers(Float32Array, year.shares[name]);
  const words = {};
  for (const name in year.words) {
    const found = numbers(Uint32Array, year.words[name].numbers);
    words[name] = (number) => year.words[name].lines[found[number]];
  }
  const state = { number: -1, timer: 0, playing: false };
  const models = {};

  // Images

  const images = new Map();

  function load(number) {
    const key = date(number);
    if (!images.has(key)) {
      const loaded = Object.keys(year.titles).map(async (name) => {
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
    const left = (index % year.columns) * width;
    const top = Math.floor(index / year.columns) * height;
    for (const canvas of document.querySelectorAll("canvas[data-panel]")) {
      const name = canvas.dataset.panel;
      const night = name === "rgb" && words.rgb(number) !== "" && "ir" in sheets;
      const pen = canvas.getContext("2d");
      pen.clearRect(0, 0, width, height);
      pen.drawImage(sheets[night ? "ir" : name], left, top, width, height, 0, 0, width, height);
      const note = canvas.parentElement.querySelector(".note");
      note.textContent = night ? "night: infrared shown" : name in words ? words[name](number) : "";
      note.hidden = note.textContent === "";
      canvas.setAttribute("aria-label", describe(name, number, note.textContent));
    }
    document.body.dataset.shown = stamp(number);
  }

  function describe(name, number, note) {
    const of = { l2: "l2_cloud", model: "cloud" }[name];
    const cloud = of && shares[of] ? `, ${share(of, number)} cloud` : "";
    return `${year.titles[name]}, ${told(number)}${cloud}${note ? `, ${note}` : ""}`;
  }

  const share = (name, number) =>
    Number.isNaN(shares[name][number]) ? "unknown" : percent(shares[name][number]);

  // Words

  function sentences(number) {
    const regime = words.regime(number);
    const lines = [[words.sun(number), regime && `regime: ${regime}`].filter(Boolean).join("; ")];
    let line = `Cloud: model ${share("cloud", number)}`;
    if (shares.agreement) {
      line += `, L2 ${share("l2_cloud", number)} of the pixels. `;
      line += Number.isNaN(shares.agreement[number])
        ? "There is nothing to compare them on."
        : `They agree on ${share("agreement", number)}.`;
    } else line += " of the pixels.";
    lines.push(line);
    if (shares.model_right) {
      const l2 = shares.l2_right ? `, L2 ${share("l2_right", number)}` : "";
      lines.push(`Agreement with the truth: model ${share("model_right", number)}${l2}.`);
    }
    return lines.filter(Boolean);
  }

  function trouble(text) {
    place("trouble").textContent = text;
    place("trouble").hidden = !text;
  }

  // Choosing

  async function choose(number) {
    if (number === state.number) return;
    state.number = number;
    place("time").textContent = told(number);
    place("words").innerHTML = "";
    for (const text of sentences(number)) {
      const line = document.createElement("div");
      line.textContent = text;
      place("words").append(line);
    }
    history.replaceState(null, "", `#${stamp(number)}`);
    mark();
    for (const button of place("differing").querySelectorAll("button")) {
      if (Number(button.dataset.number) === number) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
    try {
      const sheets = await load(number);
      trouble("");
      if (state.number === number) draw(number, sheets);
    } catch (error) {
      trouble(`The images of ${date(number)} could not be read: is the folder "days" complete?`);
      stop();
    }
  }

  const step = (by) => choose(Math.min(Math.max(state.number + by, 0), seconds.length - 1));
  const stepDay = (by) => choose(onDay(state.number, by));

  function stepDiffering(by) {
    if (!year.differing.length) return;
    const at = year.differing.indexOf(state.number);
    const count = year.differing.length;
    choose(year.differing[at < 0 ? 0 : (at + by + count) % count]);
  }

  function fromHash() {
    const text = decodeURIComponent(location.hash.slice(1));
    const time = Date.parse(`${text.length === 10 ? `${text}T12:00` : text}Z`) / 1000;
    return Number.isNaN(time) ? year.opening : nearest(time);
  }

  // Playing

  async function advance() {
    if (!state.playing) return;
    if (state.number === seconds.length - 1) return stop();
    const next = state.number + 1;
    await choose(next);
    if (firstOf[day[next] + 1] < seconds.length) load(firstOf[day[next] + 1]).catch(() => {});
    if (state.playing) state.timer = setTimeout(advance, 1000 / Number(place("speed").value));
  }

  function show(playing) {
    state.playing = playing;
    clearTimeout(state.timer);
    place("play").textContent = playing ? "Pause" : "Play";
    place("play").setAttribute("aria-pressed", String(playing));
    // A reader that told every image would never come to an end.
    place("words").setAttribute("aria-live", playing ? "off" : "polite");
  }
  const stop = () => show(false);
  function toggle() {
    show(!state.playing);
    advance();
  }

  /** Show in the plots which acquisition is chosen. */
  function mark() {
    if (!models.chosen || state.number < 0) return;
    const cell = (slots[state.number] + 0.5) * (year.step / 3600);
    const noon = 1000 * DAY * (firstDay + day[state.number] + 0.5);
    models.chosen.data = { x: [cell], y: [noon] };
    pixel.follow(state.number);
  }

  async function choosePixel(where) {
    if (!where) return;
    try {
      await pixel.choose(...where);
      mark();
    } catch (error) {
      trouble(`The series of row ${where[0] + 1} could not be read: is the folder "rows" complete?`);
    }
  }

  // Hands

  const keys = {
    ArrowLeft: () => step(-1),
    ArrowRight: () => step(1),
    ArrowUp: () => stepDay(-1),
    ArrowDown: () => stepDay(1),
    Home: (event) => choose(event.ctrlKey ? 0 : firstOf[day[state.number]]),
    End: (event) => choose(event.ctrlKey ? seconds.length - 1 : firstOf[day[state.number] + 1] - 1),
    j: () => stepDiffering(1),
    k: () => stepDiffering(-1),
    " ": () => toggle(),
  };

  function onKey(event) {
    const at = event.target;
    if (event.altKey || event.metaKey || (event.ctrlKey && !["Home", "End"].includes(event.key))) return;
    if (at.closest("input, select") || (event.key === " " && at.closest("button"))) return;
    if (!(event.key in keys)) return;
    event.preventDefault();
    if (event.key !== " ") stop();
    keys[event.key](event);
  }

  function list() {
    for (const number of year.differing) {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.number = number;
      for (const text of [told(number), percent(1 - shares.agreement[number])]) {
        const part = document.createElement("span");
        part.textContent = text;
        button.append(part);
      }
      button.addEventListener("click", () => { stop(); choose(number); });
      const item = document.createElement("li");
      item.append(button);
      place("differing").append(item);
    }
  }

  function listen() {
    const press = (id, act) => place(id).addEventListener("click", () => { stop(); act(); });
    press("earlier", () => step(-1));
    press("later", () => step(1));
    press("day-before", () => stepDay(-1));
    press("day-after", () => stepDay(1));
    press("next-differing", () => stepDiffering(1));
    place("play").addEventListener("click", toggle);
    for (const name of ["row", "column"]) {
      place(name).addEventListener("change", () => choosePixel(pixel.typed()));
    }
    document.addEventListener("keydown", onKey);
    const panels = document.querySelector(".panels");
    panels.addEventListener("click", (event) => choosePixel(pixel.onPanel(event)));
    window.addEventListener("hashchange", () => choose(fromHash()));
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) place("speed").value = "1";
  }

  // What the plots call.
  window.undulatus = {
    chooseAt(hours, milliseconds) {
      stop();
      const found = cellAt(hours, milliseconds);
      choose(found < 0 ? nearest(Math.floor(milliseconds / 1000 / DAY) * DAY + hours * 3600) : found);
    },
    tellAt(hours, milliseconds) {
      const number = cellAt(hours, milliseconds);
      return number < 0 ? "no acquisition" : `${told(number)}: ${share("cloud", number)} cloud`;
    },
    chooseHour(hours) {
      stop();
      const d = day[state.number];
      choose(nearest((firstDay + d) * DAY + hours * 3600, firstOf[d], firstOf[d + 1]));
    },
    chooseDate(milliseconds) {
      stop();
      const start = Math.floor(milliseconds / 1000 / DAY) * DAY;
      choose(nearest(start + (seconds[state.number] % DAY)));
    },
  };

  async function open() {
    list();
    listen();
    choose(fromHash());
    for (const name in window.undulatusPlots) {
      await window.Bokeh.embed.embed_item(window.undulatusPlots[name]);
    }
    for (const name of ["chosen", "series-day-values", "series-day-now", "series-year-values",
      "series-year-means", "series-year-now"]) {
      for (const drawn of window.Bokeh.documents) {
        models[name] = models[name] || drawn.get_model_by_name(name);
      }
    }
    pixel.draws(models);
    mark();
    await choosePixel([height >> 1, width >> 1]);
    document.body.dataset.ready = "true";
  }

  open();
})();
