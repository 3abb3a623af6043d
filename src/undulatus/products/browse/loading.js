/* Tiles and spectra: scripts and images that are loaded when they are needed. */
"use strict";

window.undulatusLoading = (function () {
  const data = window.undulatusMap;
  const SIDE = data.tile;
  const MOST_TILES = 200;
  const tiles = new Map();
  const waiting = new Map();

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

  /** Bytes that were deflated. */
  async function inflate(text) {
    const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /** Undo what pack() in tiles.py does: numbers of 1 or 2 bytes, in rows of a width. */
  async function unpack(text, width, Kind) {
    const found = await inflate(text);
    const count = found.length / Kind.BYTES_PER_ELEMENT;
    const values = new Kind(count);
    const wide = Kind.BYTES_PER_ELEMENT === 2;
    for (let at = 0; at < count; at++) {
      const folded = wide ? found[at] | (found[count + at] << 8) : found[at];
      const step = (folded >>> 1) ^ -(folded & 1);
      // Typed arrays wrap around as the differences do.
      values[at] = at % width ? values[at - 1] + step : step;
    }
    return values;
  }

  function loadScript(source) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = source;
      script.onload = () => resolve();
      script.onerror = () => reject(new Error(`${source} cannot be loaded. Is the folder whole?`));
      document.head.append(script);
      script.remove();
    });
  }

  /** What the script of a key hands over: a list of arguments. */
  function received(kind, source, key) {
    return new Promise((resolve, reject) => {
      waiting.set(`${kind} ${key}`, resolve);
      loadScript(source).catch(reject);
    });
  }

  window.undulatusTile = (key, ...rest) => waiting.get(`tile ${key}`)?.(rest);
  window.undulatusSpectra = (key, ...rest) => waiting.get(`spectra ${key}`)?.(rest);

  async function loadImage(source) {
    const image = new Image();
    image.src = source;
    await image.decode();
    return image;
  }

  async function fill(tile, key) {
    const source = `tiles/${key}`;
    const image = data.image ? loadImage(`${source}.webp`) : null;
    const [packed] = await received("tile", `${source}.js`, key);
    const values = await unpack(packed, SIDE, Uint8Array);
    tile.planes = data.planes.map((_, n) => values.subarray(n * SIDE * SIDE, (n + 1) * SIDE * SIDE));
    tile.image = await image;
    tile.ready = true;
  }

  /** A tile, which is loaded if it is not there yet: `ready` says whether it is. */
  function tile(level, row, column) {
    const key = `${level}/${row}_${column}`;
    let found = tiles.get(key);
    if (found) tiles.delete(key);
    else {
      found = { ready: false, level, row, column, drawn: {} };
      found.loaded = fill(found, key);
      found.loaded.catch(() => { found.failed = true; });
    }
    // The one used last is at the end; the last level is always kept.
    tiles.set(key, found);
    for (const [other, each] of tiles) {
      if (tiles.size <= MOST_TILES) break;
      if (each.level !== data.top) tiles.delete(other);
    }
    return found;
  }

  /** A tile that is loaded already, or null. */
  function present(level, row, column) {
    const found = tiles.get(`${level}/${row}_${column}`);
    return found && found.ready ? found : null;
  }

  /** The bytes of a pixel in all planes. */
  async function pixelBytes(row, column) {
    const found = tile(0, Math.floor(row / SIDE), Math.floor(column / SIDE));
    await found.loaded;
    const at = (row % SIDE) * SIDE + (column % SIDE);
    return found.planes.map((plane) => plane[at]);
  }

  let latest = { key: "" };

  /** The spectrum of the pixel, or of the nearest whose spectrum is kept; null where missing. */
  async function spectrum(row, column) {
    const { step, bands, missing } = data.spectra;
    const [tileRow, tileColumn] = [Math.floor(row / SIDE), Math.floor(column / SIDE)];
    const key = `${tileRow}_${tileColumn}`;
    const kept = (start, size) => Math.ceil(Math.min(SIDE, size - start * SIDE) / step);
    const [height, width] = [kept(tileRow, data.shape[0]), kept(tileColumn, data.shape[1])];
    if (latest.key !== key) {
      const [lows, steps, packed] = await received("spectra", `spectra/${key}.js`, key);
      latest = { key, lows, steps, numbers: await unpack(packed, width, Uint16Array) };
    }
    const { lows, steps, numbers } = latest;
    const nearest = (at, count) => Math.min(count - 1, Math.round((at % SIDE) / step));
    const [r, c] = [nearest(row, height), nearest(column, width)];
    const values = bands.map((_, band) => {
      const number = numbers[(band * height + r) * width + c];
      return number === missing ? null : lows[band] + steps[band] * number;
    });
    return { row: tileRow * SIDE + r * step, column: tileColumn * SIDE + c * step, values };
  }

  return { bytes, tile, present, pixelBytes, spectrum };
})();
