// Runs a model on float32 numbers from standard input and prints its outputs, one per line.
//
//   FANIN_MODEL=libfanin_model.so node app.mjs RUNTIME OPS MODEL SHAPE [THREADS] < input
//
// onnxruntime-node has no way to register an op library, so this calls the C API of its
// libonnxruntime.so.1 (or any other) through koffi.
import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import koffi from 'koffi';

const MESSAGE_SIZE = 1024;
koffi.opaque('Model'); // names the type in the declarations below

/** The functions of model.h in the library at `path`. */
function loadLibrary(path) {
  const library = koffi.load(path);
  const run = library.func(
    'int model_run(const Model *, const float *, size_t, const int64_t *, size_t, ' +
      '_Out_ void **, _Out_ size_t *, void *)',
  );
  return {
    open: library.func(
      'int model_open(const char *, const char *, const char *, int, _Out_ Model **, void *)',
    ),
    run: promisify(run.async),
    free: library.func('void model_free(void *)'),
    close: library.func('void model_close(Model *)'),
  };
}

function check(status, message) {
  if (status !== 0) throw new Error(message.toString('utf8', 0, message.indexOf(0)));
}

/** An opened model; calls of run may overlap. */
class Model {
  #library;
  #handle;

  constructor(library, runtime, ops, path, threads) {
    const message = Buffer.alloc(MESSAGE_SIZE);
    const model = [null];
    check(library.open(runtime, ops, path, threads, model, message), message);
    this.#library = library;
    this.#handle = model[0];
  }

  /** Returns the output for a row-major Float32Array; the event loop goes on meanwhile. */
  async run(input, shape) {
    const message = Buffer.alloc(MESSAGE_SIZE);
    const output = [null];
    const count = [0];
    const sizes = BigInt64Array.from(shape, BigInt);
    const status = await this.#library.run(
      this.#handle, input, input.length, sizes, sizes.length, output, count, message,
    );
    check(status, message);
    try {
      return new Float32Array(koffi.view(output[0], 4 * Number(count[0]))).slice();
    } finally {
      this.#library.free(output[0]);
    }
  }

  close() {
    this.#library.close(this.#handle);
  }
}

function parseNumber(text) {
  if (!/^-?\d{1,9}$/.test(text)) throw new Error(`'${text}' is not a whole number in range`);
  return Number(text);
}

async function main([runtime, ops, path, shape, threads = '1']) {
  const bytes = readFileSync(0);
  const whole = bytes.length - (bytes.length % 4);
  const input = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + whole));
  const library = loadLibrary(process.env.FANIN_MODEL);
  const model = new Model(library, runtime, ops, path, parseNumber(threads));
  try {
    const output = await model.run(input, shape.split(',').map(parseNumber));
    process.stdout.write(Array.from(output, (value) => `${value}\n`).join(''));
  } finally {
    model.close();
  }
}

const given = process.argv.slice(2);
if (given.length < 4 || given.length > 5 || !process.env.FANIN_MODEL) {
  console.error('usage: FANIN_MODEL=PATH node app.mjs RUNTIME OPS MODEL SHAPE [THREADS] < input');
  process.exit(2);
}
try {
  await main(given);
} catch (error) {
  console.error(`app: ${error.message}`);
  process.exitCode = 1;
}
