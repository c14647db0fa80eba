"use strict";
/* Columns of numbers out of the page's blocks: what testbed/page/columns.py packed. */

const NOTHING = -2147483648;

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const found = atob(text);
  const bytes = new Uint8Array(found.length);
  for (let i = 0; i < found.length; i++) bytes[i] = found.charCodeAt(i);
  return bytes;
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function summedUp(bytes, offset, rows) {
  const column = new Int32Array(rows);
  let value = 0;
  for (let i = 0, p = offset; i < rows; i++, p++) {
    const turned = bytes[p] | (bytes[p + rows] << 8) | (bytes[p + 2 * rows] << 16) | (bytes[p + 3 * rows] << 24);
    value = (value + ((turned >>> 1) ^ -(turned & 1))) | 0;
    column[i] = value;
  }
  return column;
}

/* A table: {rows, unit, kinds, and a column by each name}. */
async function tableOf(described) {
  const { rows, columns, constant, unit, kinds } = described;
  const found = { rows, unit, kinds, sizeUnit: described.size_unit };
  for (const [name, value] of Object.entries(constant)) found[name] = new Int32Array(rows).fill(value);
  if (columns.length) {
    const bytes = await inflated(bytesOf(document.getElementById(described.block).textContent));
    columns.forEach((name, index) => { found[name] = summedUp(bytes, 4 * rows * index, rows); });
  }
  return found;
}
