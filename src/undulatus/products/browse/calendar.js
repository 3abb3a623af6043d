/* When the acquisitions were taken, and how to get from one to another. */
"use strict";

window.undulatusCalendar = (function () {
  const data = window.undulatusData;
  const DAY = 86400; // seconds

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const numbers = (ArrayType, text) => new ArrayType(bytes(text).buffer);

  // Of each acquisition: seconds since 1970, its day (row of the table), its slot (column).
  const seconds = Float64Array.from(numbers(Uint32Array, data.seconds), (s) => s + data.first);
  const firstDay = Math.floor(data.first / DAY);
  const day = Int32Array.from(seconds, (s) => Math.floor(s / DAY) - firstDay);
  const slots = numbers(Uint16Array, data.slots);
  const [days, slotsPerDay] = data.table;

  // The first acquisition of each day, and one entry more for the end of the last day.
  const firstOf = new Int32Array(days + 1).fill(seconds.length);
  const cells = new Int32Array(days * slotsPerDay).fill(-1);
  for (let n = seconds.length - 1; n >= 0; n--) {
    firstOf[day[n]] = n;
    cells[day[n] * slotsPerDay + slots[n]] = n;
  }
  for (let d = days - 1; d >= 0; d--) if (firstOf[d] === seconds.length) firstOf[d] = firstOf[d + 1];

  const stamp = (number) => new Date(1000 * seconds[number]).toISOString().slice(0, 16);
  const timeText = (number) => `${stamp(number).replace("T", " ")} UTC`;
  const date = (number) => stamp(number).slice(0, 10);

  /** The acquisition nearest to a time, among those from `low` up to but not including `high`. */
  function nearest(time, low = 0, high = seconds.length) {
    let [from, to] = [low, high - 1];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (seconds[middle] < time) from = middle + 1;
      else to = middle;
    }
    return from > low && time - seconds[from - 1] <= seconds[from] - time ? from - 1 : from;
  }

  /** The acquisition at about the same time on the next (1) or previous (-1) day that has any. */
  function sameTimeOnDay(number, direction) {
    let d = day[number] + direction;
    while (d >= 0 && d < days && firstOf[d] === firstOf[d + 1]) d += direction;
    if (d < 0 || d >= days) return number;
    return nearest((firstDay + d) * DAY + (seconds[number] % DAY), firstOf[d], firstOf[d + 1]);
  }

  /** The acquisition in the cell at an hour of a day, or -1 if the cell is empty. */
  function inCell(hours, milliseconds) {
    const d = Math.floor(milliseconds / 1000 / DAY) - firstDay;
    const s = Math.floor((hours * 3600) / data.step);
    return d < 0 || d >= days || s < 0 || s >= slotsPerDay ? -1 : cells[d * slotsPerDay + s];
  }

  return {
    DAY, bytes, numbers, seconds, firstDay, day, slots, days, firstOf,
    stamp, timeText, date, nearest, sameTimeOnDay, inCell,
  };
})();
