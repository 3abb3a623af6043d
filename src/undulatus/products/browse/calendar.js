/* The acquisitions of the year: when they were taken, and how to go from one to another. */
"use strict";

window.undulatusCalendar = (function () {
  const year = window.undulatusYear;
  const DAY = 86400;

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const numbers = (Kind, text) => new Kind(bytes(text).buffer);

  const seconds = Float64Array.from(numbers(Uint32Array, year.seconds), (s) => s + year.first);
  const firstDay = Math.floor(year.first / DAY);
  const day = Int32Array.from(seconds, (s) => Math.floor(s / DAY) - firstDay);
  const slots = numbers(Uint16Array, year.slots);
  const [days, slotsADay] = year.size;

  // The first acquisition of each day, and of the day after the last.
  const firstOf = new Int32Array(days + 1).fill(seconds.length);
  const cells = new Int32Array(days * slotsADay).fill(-1);
  for (let n = seconds.length - 1; n >= 0; n--) {
    firstOf[day[n]] = n;
    cells[day[n] * slotsADay + slots[n]] = n;
  }
  for (let d = days - 1; d >= 0; d--) if (firstOf[d] === seconds.length) firstOf[d] = firstOf[d + 1];

  const stamp = (number) => new Date(1000 * seconds[number]).toISOString().slice(0, 16);
  const told = (number) => `${stamp(number).replace("T", " ")} UTC`;
  const date = (number) => stamp(number).slice(0, 10);

  /** The acquisition nearest to a time, among those from `low` up to, not including, `high`. */
  function nearest(time, low = 0, high = seconds.length) {
    let [from, to] = [low, high - 1];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (seconds[middle] < time) from = middle + 1;
      else to = middle;
    }
    return from > low && time - seconds[from - 1] <= seconds[from] - time ? from - 1 : from;
  }

  /** The acquisition at about the same time of day on the next day that has any. */
  function onDay(number, towards) {
    let d = day[number] + towards;
    while (d >= 0 && d < days && firstOf[d] === firstOf[d + 1]) d += towards;
    if (d < 0 || d >= days) return number;
    return nearest((firstDay + d) * DAY + (seconds[number] % DAY), firstOf[d], firstOf[d + 1]);
  }

  function cellAt(hours, milliseconds) {
    const d = Math.floor(milliseconds / 1000 / DAY) - firstDay;
    const s = Math.floor((hours * 3600) / year.step);
    return d < 0 || d >= days || s < 0 || s >= slotsADay ? -1 : cells[d * slotsADay + s];
  }

  return {
    DAY, bytes, numbers, seconds, firstDay, day, slots, days, firstOf,
    stamp, told, date, nearest, onDay, cellAt,
  };
})();
