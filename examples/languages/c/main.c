// Runs a model on float32 numbers from standard input and prints its outputs, one per line.
//
//   app RUNTIME OPS MODEL SHAPE [THREADS] < input
//
// RUNTIME is libonnxruntime.so, OPS is libfanin_ort_ops.so, SHAPE is the input's shape, such as
// 1,784. The input is raw: row-major float32, as numpy's tofile writes it.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "model.h"
#include "onnxruntime_abi.h"
#include "platform.h"

enum { MAX_RANK = 16 };

// Reads a whole number and moves `text` behind it.
static int parse_number(const char** text, int64_t* number) {
  char* end = NULL;
  errno = 0;
  *number = strtoll(*text, &end, 10);
  int status = end == *text || errno != 0;
  *text = end;
  return status;
}

static int parse_shape(const char* text, int64_t* shape, size_t* rank) {
  for (*rank = 0; *rank < MAX_RANK; ++text) {
    if (parse_number(&text, &shape[(*rank)++])) return 1;
    if (*text == '\0') return 0;
    if (*text != ',') return 1;
  }
  return 1;
}

static int parse_threads(const char* text, int* threads) {
  int64_t number = 0;
  if (parse_number(&text, &number) || *text || number < INT_MIN || number > INT_MAX) return 1;
  *threads = (int)number;
  return 0;
}

static float* read_floats(FILE* file, size_t* count) {
  size_t room = 4096;
  float* values = malloc(room * sizeof *values);
  *count = 0;
  while (values) {
    *count += fread(values + *count, sizeof *values, room - *count, file);
    if (*count < room) return values;
    room *= 2;
    float* more = realloc(values, room * sizeof *values);
    if (!more) free(values);
    values = more;
  }
  return NULL;
}

static int fail(const char* message) {
  fprintf(stderr, "app: %s\n", message);
  return 1;
}

static int refuse(const char* argument, const char* wanted) {
  fprintf(stderr, "app: '%s' is not %s\n", argument, wanted);
  return 1;
}

int main(int argc, char** argv) {
  if (argc < 5 || argc > 6) {
    fprintf(stderr, "usage: %s RUNTIME OPS MODEL SHAPE [THREADS] < input\n", argv[0]);
    return 2;
  }
  char message[MODEL_MESSAGE_SIZE];
  int64_t shape[MAX_RANK];
  int threads = 1;
  size_t rank = 0, count = 0, output_count = 0;
  if (parse_shape(argv[4], shape, &rank)) return refuse(argv[4], "a shape such as 1,784");
  if (argc == 6 && parse_threads(argv[5], &threads))
    return refuse(argv[5], "a whole number in range");
  read_raw_input();
  float* input = read_floats(stdin, &count);
  if (!input) return fail("out of memory");

  Model* model = NULL;
  float* output = NULL;
  int status = model_open(argv[1], argv[2], argv[3], threads, &model, message);
  if (!status) {
    status = model_run(model, input, count, shape, rank, &output, &output_count, message);
    model_close(model);
  }
  free(input);
  if (status) return fail(message);
  for (size_t i = 0; i < output_count; ++i) printf("%.9g\n", output[i]);
  model_free(output);
  return 0;
}
