// A model with one float32 input and one float32 output, in ONNX Runtime with fanin's ops. Plain C
// types and few functions, so that any language's foreign-function interface reaches it.
#ifndef FANIN_EXAMPLES_MODEL_H
#define FANIN_EXAMPLES_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MODEL_MESSAGE_SIZE = 1024 };

typedef struct Model Model;

// Opens the model file `path` in the ONNX Runtime library `runtime`, 1.17 or newer, with fanin's op
// library `ops`, an absolute path, and `threads` threads. Returns 0, or 1 with the reason in
// `message`, which has room for MODEL_MESSAGE_SIZE bytes.
int model_open(const char* runtime, const char* ops, const char* path, int threads, Model** model,
               char* message);

// Runs the model on `count` row-major numbers. Returns 0 and the output, which model_free()
// releases, or 1 and a message. Several threads may call it at once.
int model_run(const Model* model, const float* input, size_t count, const int64_t* shape,
              size_t rank, float** output, size_t* output_count, char* message);

void model_free(float* output);
void model_close(Model* model);

#ifdef __cplusplus
}
#endif
#endif  // FANIN_EXAMPLES_MODEL_H
