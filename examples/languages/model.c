#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime_abi.h"
#include "platform.h"

enum { API_VERSION = 17, MAX_THREADS = 1024 };

struct Model {
  const OrtApi* api;
  OrtEnv* env;
  OrtSession* session;
  OrtAllocator* allocator;  // the runtime's own, never released
  char* input;
  char* output;
};

static int fail(char* message, const char* text) {
  snprintf(message, MODEL_MESSAGE_SIZE, "%s", text);
  return 1;
}

// Takes the status of a call of ONNX Runtime: null means that it succeeded.
static int failed(const OrtApi* api, OrtStatus* status, char* message) {
  if (!status) return 0;
  fail(message, api->GetErrorMessage(status));
  api->ReleaseStatus(status);
  return 1;
}

static int load_runtime(const char* path, const OrtApi** api, char* message) {
  // Never closed: the runtime's threads live until the process ends.
  void* library = load_library(path);
  if (!library) {
    snprintf(message, MODEL_MESSAGE_SIZE, "cannot load ONNX Runtime: %s", load_problem());
    return 1;
  }
  const OrtApiBase* (*entry)(void) =
      (const OrtApiBase* (*)(void))library_symbol(library, "OrtGetApiBase");
  if (!entry) {
    snprintf(message, MODEL_MESSAGE_SIZE, "%s is not ONNX Runtime: no OrtGetApiBase", path);
    return 1;
  }
  *api = entry()->GetApi(API_VERSION);
  if (*api) return 0;
  snprintf(message, MODEL_MESSAGE_SIZE, "ONNX Runtime %s is older than 1.17",
           entry()->GetVersionString());
  return 1;
}

static int create_session(Model* model, const OrtSessionOptions* options, const char* path,
                          char* message) {
  const OrtApi* api = model->api;
  size_t inputs = 0, outputs = 0;
  ORTCHAR_T room[MAX_PATH_CHARS];
  if (failed(api, api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "model", &model->env), message) ||
      failed(api,
             api->CreateSession(model->env, runtime_path(path, &room), options, &model->session),
             message) ||
      failed(api, api->SessionGetInputCount(model->session, &inputs), message) ||
      failed(api, api->SessionGetOutputCount(model->session, &outputs), message))
    return 1;
  if (inputs != 1 || outputs != 1)
    return fail(message, "the model must have one input and one output");
  OrtAllocator** allocator = &model->allocator;
  return failed(api, api->GetAllocatorWithDefaultOptions(allocator), message) ||
         failed(api, api->SessionGetInputName(model->session, 0, *allocator, &model->input),
                message) ||
         failed(api, api->SessionGetOutputName(model->session, 0, *allocator, &model->output),
                message);
}

int model_open(const char* runtime, const char* ops, const char* path, int threads, Model** model,
               char* message) {
  const OrtApi* api = NULL;
  if (threads < 1 || threads > MAX_THREADS) {
    snprintf(message, MODEL_MESSAGE_SIZE, "%d threads: pass 1 to %d", threads, MAX_THREADS);
    return 1;
  }
  if (load_runtime(runtime, &api, message)) return 1;
  Model* opened = calloc(1, sizeof *opened);
  if (!opened) return fail(message, "out of memory");
  opened->api = api;

  char count[12];
  snprintf(count, sizeof count, "%d", threads);
  OrtSessionOptions* options = NULL;
  ORTCHAR_T room[MAX_PATH_CHARS];
  // The ops read their number of threads when they are registered, so it is set before.
  int status =
      failed(api, api->CreateSessionOptions(&options), message) ||
      failed(api, api->SetIntraOpNumThreads(options, threads), message) ||
      failed(api, api->AddSessionConfigEntry(options, "fanin.threads", count), message) ||
      failed(api, api->RegisterCustomOpsLibrary_V2(options, runtime_path(ops, &room)), message) ||
      create_session(opened, options, path, message);
  if (options) api->ReleaseSessionOptions(options);
  if (status) {
    model_close(opened);
    return status;
  }
  *model = opened;
  return 0;
}

static int count_floats(const OrtApi* api, const OrtValue* value, size_t* count, char* message) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  if (failed(api, api->GetTensorTypeAndShape(value, &info), message)) return 1;
  int status = failed(api, api->GetTensorElementType(info, &type), message) ||
               failed(api, api->GetTensorShapeElementCount(info, count), message);
  api->ReleaseTensorTypeAndShapeInfo(info);
  if (status) return status;
  return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT ? 0
                                                     : fail(message, "the output is not float32");
}

static int copy_output(const OrtApi* api, OrtValue* value, float** output, size_t* output_count,
                       char* message) {
  void* data = NULL;
  if (count_floats(api, value, output_count, message) ||
      failed(api, api->GetTensorMutableData(value, &data), message))
    return 1;
  size_t bytes = *output_count * sizeof **output;
  *output = malloc(bytes ? bytes : 1);
  if (!*output) return fail(message, "out of memory");
  memcpy(*output, data, bytes);
  return 0;
}

static int create_tensor(const OrtApi* api, const float* input, size_t count, const int64_t* shape,
                         size_t rank, OrtValue** tensor, char* message) {
  OrtMemoryInfo* memory = NULL;
  size_t elements = 0;
  if (failed(api, api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory), message))
    return 1;
  // The tensor is a view of the input, which the runtime only reads.
  OrtStatus* created =
      api->CreateTensorWithDataAsOrtValue(memory, (void*)input, count * sizeof *input, shape, rank,
                                          ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, tensor);
  api->ReleaseMemoryInfo(memory);
  if (failed(api, created, message) || count_floats(api, *tensor, &elements, message)) return 1;
  return elements == count ? 0 : fail(message, "the input has more numbers than its shape");
}

int model_run(const Model* model, const float* input, size_t count, const int64_t* shape,
              size_t rank, float** output, size_t* output_count, char* message) {
  const OrtApi* api = model->api;
  OrtValue* x = NULL;
  OrtValue* y = NULL;
  const char* inputs[] = {model->input};
  const char* outputs[] = {model->output};
  int status =
      create_tensor(api, input, count, shape, rank, &x, message) ||
      failed(api,
             api->Run(model->session, NULL, inputs, (const OrtValue* const*)&x, 1, outputs, 1, &y),
             message) ||
      copy_output(api, y, output, output_count, message);
  if (y) api->ReleaseValue(y);
  if (x) api->ReleaseValue(x);
  return status;
}

void model_free(float* output) { free(output); }

static void free_name(const Model* model, char* name) {
  OrtStatus* status = name ? model->api->AllocatorFree(model->allocator, name) : NULL;
  if (status) model->api->ReleaseStatus(status);
}

void model_close(Model* model) {
  const OrtApi* api = model->api;
  free_name(model, model->input);
  free_name(model, model->output);
  if (model->session) api->ReleaseSession(model->session);
  if (model->env) api->ReleaseEnv(model->env);
  free(model);
}
