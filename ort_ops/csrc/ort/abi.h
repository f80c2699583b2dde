// The part of ONNX Runtime's C ABI that the ops use, written from its documented layout: a table of
// function pointers that only ever grows at its end, so a slot's number never changes. One binary
// built from it runs on every release from kApiVersion on. abi_check.cc compares it with the
// official header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin::ort {

// ONNX Runtime's objects; only pointers to them ever cross the boundary.
struct OrtApi;
struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtOpAttr;
struct OrtLogger;
struct OrtKeyValuePairs;
struct OrtAllocator;
struct OrtMemoryInfo;

// Requested by number, since a runtime refuses a version above its own.
inline constexpr uint32_t kApiVersion = 17;  // onnxruntime 1.17: ParallelFor, shape inference
inline constexpr uint32_t kAllocatorApiVersion = 18;  // onnxruntime 1.18: a kernel's allocator
inline constexpr uint32_t kInplaceApiVersion = 18;    // onnxruntime 1.18: an input's memory for Y
inline constexpr uint32_t kConfigApiVersion = 24;  // onnxruntime 1.24: session config of a kernel

// Not all values: a status of the runtime may have others.
enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };

enum ElementType : int {
  kUndefined = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUint32 = 12,
  kUint64 = 13,
  kBfloat16 = 16,
};

enum Characteristic : int { kRequired = 0 };
enum MemoryType : int { kCpuInput = -2, kDefaultMemory = 0 };
enum DeviceType : int { kCpuDevice = 0 };
enum LogLevel : int { kInfo = 1, kWarning = 2 };
enum AttributeType : int { kIntAttribute = 1, kIntsAttribute = 2 };

// ROW(slot, API version that added it, result, name, parameters). Functions with a status as
// result return null for success. Tensors read with GetTensorMutableData are never written.
#define FANIN_ORT_SLOTS(ROW)                                                                    \
  ROW(0, 1, OrtStatus*, CreateStatus, (int code, const char* message))                          \
  ROW(1, 1, int, GetErrorCode, (const OrtStatus*))                                              \
  ROW(2, 1, const char*, GetErrorMessage, (const OrtStatus*))                                   \
  ROW(26, 1, OrtStatus*, CreateCustomOpDomain, (const char* name, OrtCustomOpDomain** out))     \
  ROW(27, 1, OrtStatus*, CustomOpDomain_Add, (OrtCustomOpDomain*, const OrtCustomOp*))          \
  ROW(28, 1, OrtStatus*, AddCustomOpDomain, (OrtSessionOptions*, OrtCustomOpDomain*))           \
  ROW(51, 1, OrtStatus*, GetTensorMutableData, (OrtValue*, void** out))                         \
  ROW(55, 1, OrtStatus*, CastTypeInfoToTensorInfo,                                              \
      (const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo** out))                              \
  ROW(57, 1, OrtStatus*, CreateTensorTypeAndShapeInfo, (OrtTensorTypeAndShapeInfo**))           \
  ROW(58, 1, OrtStatus*, SetTensorElementType, (OrtTensorTypeAndShapeInfo*, int type))          \
  ROW(59, 1, OrtStatus*, SetDimensions,                                                         \
      (OrtTensorTypeAndShapeInfo*, const int64_t* dims, size_t rank))                           \
  ROW(60, 1, OrtStatus*, GetTensorElementType, (const OrtTensorTypeAndShapeInfo*, int* out))    \
  ROW(61, 1, OrtStatus*, GetDimensionsCount, (const OrtTensorTypeAndShapeInfo*, size_t* out))   \
  ROW(62, 1, OrtStatus*, GetDimensions,                                                         \
      (const OrtTensorTypeAndShapeInfo*, int64_t* out, size_t rank))                            \
  ROW(63, 1, OrtStatus*, GetSymbolicDimensions,                                                 \
      (const OrtTensorTypeAndShapeInfo*, const char** out, size_t rank))                        \
  ROW(65, 1, OrtStatus*, GetTensorTypeAndShape, (const OrtValue*, OrtTensorTypeAndShapeInfo**)) \
  ROW(72, 1, OrtStatus*, MemoryInfoGetId, (const OrtMemoryInfo*, int* out))                     \
  ROW(77, 1, OrtStatus*, AllocatorGetInfo, (const OrtAllocator*, const OrtMemoryInfo** out))    \
  ROW(85, 1, OrtStatus*, KernelInfoGetAttribute_float,                                          \
      (const OrtKernelInfo*, const char* name, float* out))                                     \
  ROW(86, 1, OrtStatus*, KernelInfoGetAttribute_int64,                                          \
      (const OrtKernelInfo*, const char* name, int64_t* out))                                   \
  ROW(87, 1, OrtStatus*, KernelInfoGetAttribute_string,                                         \
      (const OrtKernelInfo*, const char* name, char* out, size_t* size))                        \
  ROW(90, 1, OrtStatus*, KernelContext_GetInput,                                                \
      (const OrtKernelContext*, size_t index, const OrtValue** out))                            \
  ROW(91, 1, OrtStatus*, KernelContext_GetOutput,                                               \
      (OrtKernelContext*, size_t index, const int64_t* dims, size_t rank, OrtValue** out))      \
  ROW(93, 1, void, ReleaseStatus, (OrtStatus*))                                                 \
  ROW(98, 1, void, ReleaseTypeInfo, (OrtTypeInfo*))                                             \
  ROW(99, 1, void, ReleaseTensorTypeAndShapeInfo, (OrtTensorTypeAndShapeInfo*))                 \
  ROW(125, 4, OrtStatus*, GetAvailableProviders, (char*** names, int* count))                   \
  ROW(126, 4, OrtStatus*, ReleaseAvailableProviders, (char** names, int count))                 \
  ROW(130, 5, OrtStatus*, AddSessionConfigEntry,                                                \
      (OrtSessionOptions*, const char* key, const char* value))                                 \
  ROW(132, 5, void, ReleaseAllocator, (OrtAllocator*))                                          \
  ROW(162, 8, OrtStatus*, KernelInfoGetAttributeArray_float,                                    \
      (const OrtKernelInfo*, const char* name, float* out, size_t* size))                       \
  ROW(163, 8, OrtStatus*, KernelInfoGetAttributeArray_int64,                                    \
      (const OrtKernelInfo*, const char* name, int64_t* out, size_t* size))                     \
  ROW(193, 10, OrtStatus*, KernelContext_GetGPUComputeStream,                                   \
      (const OrtKernelContext*, void** out))                                                    \
  ROW(194, 10, OrtStatus*, GetTensorMemoryInfo, (const OrtValue*, const OrtMemoryInfo** out))   \
  ROW(225, 14, void, MemoryInfoGetDeviceType, (const OrtMemoryInfo*, DeviceType* out))          \
  ROW(233, 14, OrtStatus*, KernelInfo_GetOutputName,                                            \
      (const OrtKernelInfo*, size_t index, char* out, size_t* size))                            \
  ROW(234, 14, OrtStatus*, KernelInfo_GetInputTypeInfo,                                         \
      (const OrtKernelInfo*, size_t index, OrtTypeInfo** out))                                  \
  ROW(237, 14, OrtStatus*, HasSessionConfigEntry,                                               \
      (const OrtSessionOptions*, const char* key, int* out))                                    \
  ROW(238, 14, OrtStatus*, GetSessionConfigEntry,                                               \
      (const OrtSessionOptions*, const char* key, char* out, size_t* size))                     \
  ROW(244, 15, OrtStatus*, KernelInfo_GetNodeName, (const OrtKernelInfo*, char* out, size_t*))  \
  ROW(245, 15, OrtStatus*, KernelInfo_GetLogger, (const OrtKernelInfo*, const OrtLogger** out)) \
  ROW(247, 15, OrtStatus*, Logger_LogMessage,                                                   \
      (const OrtLogger*, int level, const char* message, const char* file, int line,            \
       const char* function))                                                                   \
  ROW(249, 15, OrtStatus*, KernelInfoGetConstantInput_tensor,                                   \
      (const OrtKernelInfo*, size_t index, int* is_constant, const OrtValue** out))             \
  ROW(265, 16, OrtStatus*, KernelContext_GetResource,                                           \
      (const OrtKernelContext*, int version, int id, void** out))                               \
  ROW(268, 17, OrtStatus*, ShapeInferContext_GetInputTypeShape,                                 \
      (const OrtShapeInferContext*, size_t index, OrtTensorTypeAndShapeInfo** out))             \
  ROW(269, 17, OrtStatus*, ShapeInferContext_GetAttribute,                                      \
      (const OrtShapeInferContext*, const char* name, const OrtOpAttr** out))                   \
  ROW(270, 17, OrtStatus*, ShapeInferContext_SetOutputTypeShape,                                \
      (const OrtShapeInferContext*, size_t index, const OrtTensorTypeAndShapeInfo*))            \
  ROW(271, 17, OrtStatus*, SetSymbolicDimensions,                                               \
      (OrtTensorTypeAndShapeInfo*, const char** names, size_t rank))                            \
  ROW(272, 17, OrtStatus*, ReadOpAttr,                                                          \
      (const OrtOpAttr*, int type, void* data, size_t bytes, size_t* bytes_needed))             \
  ROW(274, 17, OrtStatus*, KernelContext_ParallelFor,                                           \
      (const OrtKernelContext*, void (*body)(void*, size_t), size_t total, size_t batches,      \
       void* user))                                                                             \
  ROW(278, 18, OrtStatus*, KernelInfoGetAllocator,                                              \
      (const OrtKernelInfo*, MemoryType, OrtAllocator** out))                                   \
  ROW(297, 22, const char*, GetKeyValue, (const OrtKeyValuePairs*, const char* key))            \
  ROW(300, 22, void, ReleaseKeyValuePairs, (OrtKeyValuePairs*))                                 \
  ROW(391, 24, OrtStatus*, KernelInfo_GetConfigEntries,                                         \
      (const OrtKernelInfo*, OrtKeyValuePairs** out))                                           \
  ROW(414, 24, OrtStatus*, GetTensorElementTypeAndShapeDataReference,                           \
      (const OrtValue*, int* type, const int64_t** dims, size_t* rank))

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// The runtime's description of an op. Fields are in ABI order; null where the runtime allows it.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ElementType (*GetInputType)(const OrtCustomOp*, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ElementType (*GetOutputType)(const OrtCustomOp*, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, OrtKernelContext*);
  void (*KernelDestroy)(void* kernel);
  Characteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
  Characteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
  MemoryType (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*,
                               void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int** input_index, int** output_index);
  void (*ReleaseMayInplace)(int* input_index, int* output_index);
  size_t (*GetAliasMap)(int** input_index, int** output_index);
  void (*ReleaseAliasMap)(int* input_index, int* output_index);
};

// Calls through the table: `api.GetErrorCode(status)`.
class Api {
 public:
  explicit Api(const OrtApi* api) : slots_(reinterpret_cast<void* const*>(api)) {}

#define FANIN_ORT_METHOD(slot, since, result, name, parameters)                \
  template <typename... Arguments>                                             \
  result name(Arguments... arguments) const {                                  \
    return reinterpret_cast<result(*) parameters>(slots_[slot])(arguments...); \
  }
  FANIN_ORT_SLOTS(FANIN_ORT_METHOD)
#undef FANIN_ORT_METHOD

 private:
  void* const* slots_;
};

}  // namespace fanin::ort
