// The part of ONNX Runtime's C API that these examples call, for C and C++. The API is a table of
// functions that only grows at its end, so this part fits every release from 1.17 on. If you have
// the official onnxruntime_c_api.h, compile with -DFANIN_OFFICIAL_HEADER and nothing else changes.
#ifndef FANIN_EXAMPLES_ONNXRUNTIME_ABI_H
#define FANIN_EXAMPLES_ONNXRUNTIME_ABI_H

#ifdef FANIN_OFFICIAL_HEADER
#include <onnxruntime_c_api.h>
#else

#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define ORTCHAR_T wchar_t
#else
#define ORTCHAR_T char
#endif

typedef struct OrtEnv OrtEnv;
typedef struct OrtStatus OrtStatus;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtValue OrtValue;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;

typedef enum { ORT_LOGGING_LEVEL_WARNING = 2 } OrtLoggingLevel;
typedef enum { OrtArenaAllocator = 1 } OrtAllocatorType;
typedef enum { OrtMemTypeDefault = 0 } OrtMemType;
typedef enum { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 } ONNXTensorElementDataType;

// A comment is the number of the first slot after it; `unused` fills the slots between.
typedef struct OrtApi {
  void* unused_0[2];
  const char* (*GetErrorMessage)(const OrtStatus*);  // 2
  OrtStatus* (*CreateEnv)(OrtLoggingLevel, const char* name, OrtEnv**);
  void* unused_4[3];
  OrtStatus* (*CreateSession)(const OrtEnv*, const ORTCHAR_T* path, const OrtSessionOptions*,
                              OrtSession**);  // 7
  void* unused_8[1];
  OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, const char* const* input_names,
                    const OrtValue* const* inputs, size_t input_count,
                    const char* const* output_names, size_t output_count, OrtValue** outputs);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);  // 10
  void* unused_11[13];
  OrtStatus* (*SetIntraOpNumThreads)(OrtSessionOptions*, int);  // 24
  void* unused_25[5];
  OrtStatus* (*SessionGetInputCount)(const OrtSession*, size_t*);  // 30
  OrtStatus* (*SessionGetOutputCount)(const OrtSession*, size_t*);
  void* unused_32[4];
  OrtStatus* (*SessionGetInputName)(const OrtSession*, size_t, OrtAllocator*, char**);  // 36
  OrtStatus* (*SessionGetOutputName)(const OrtSession*, size_t, OrtAllocator*, char**);
  void* unused_38[11];
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void* data, size_t bytes,
                                               const int64_t* shape, size_t rank,
                                               ONNXTensorElementDataType, OrtValue**);  // 49
  void* unused_50[1];
  OrtStatus* (*GetTensorMutableData)(OrtValue*, void**);  // 51
  void* unused_52[8];
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo*,
                                     ONNXTensorElementDataType*);  // 60
  void* unused_61[3];
  OrtStatus* (*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo*, size_t*);  // 64
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue*, OrtTensorTypeAndShapeInfo**);
  void* unused_66[3];
  OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo**);  // 69
  void* unused_70[6];
  OrtStatus* (*AllocatorFree)(OrtAllocator*, void*);  // 76
  void* unused_77[1];
  OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator**);  // 78
  void* unused_79[13];
  void (*ReleaseEnv)(OrtEnv*);  // 92
  void (*ReleaseStatus)(OrtStatus*);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo*);
  void (*ReleaseSession)(OrtSession*);
  void (*ReleaseValue)(OrtValue*);
  void* unused_97[2];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo*);  // 99
  void (*ReleaseSessionOptions)(OrtSessionOptions*);
  void* unused_101[29];
  OrtStatus* (*AddSessionConfigEntry)(OrtSessionOptions*, const char* key,
                                      const char* value);  // 130
  void* unused_131[97];
  OrtStatus* (*RegisterCustomOpsLibrary_V2)(OrtSessionOptions*, const ORTCHAR_T* path);  // 228
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} OrtApiBase;

#endif  // FANIN_OFFICIAL_HEADER
#endif  // FANIN_EXAMPLES_ONNXRUNTIME_ABI_H
