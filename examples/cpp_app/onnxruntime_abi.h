// The calls of ONNX Runtime's C API that this app makes. The API is a table of function pointers
// that only grows at its end, so a slot's number is valid for every release from 1.17 on. If you
// have the official onnxruntime_c_api.h, include that instead and write api->CreateSession(...).
#pragma once

#include <cstddef>
#include <cstdint>

struct OrtEnv;
struct OrtStatus;
struct OrtSession;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtApi;

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

namespace abi {

inline constexpr uint32_t kApiVersion = 17;  // onnxruntime 1.17, which fanin's ops require
inline constexpr int kLogWarning = 2;
inline constexpr int kArenaAllocator = 1;
inline constexpr int kDefaultMemory = 0;
inline constexpr int kFloat = 1;

// One function of the table: its slot, result type and argument types.
template <size_t Slot, typename Result, typename... Arguments>
struct Call {
  Result operator()(const OrtApi* api, Arguments... arguments) const {
    auto* slots = reinterpret_cast<void* const*>(api);
    return reinterpret_cast<Result (*)(Arguments...)>(slots[Slot])(arguments...);
  }
};

inline constexpr Call<2, const char*, const OrtStatus*> GetErrorMessage;
inline constexpr Call<3, OrtStatus*, int, const char*, OrtEnv**> CreateEnv;
inline constexpr Call<7, OrtStatus*, const OrtEnv*, const char*, const OrtSessionOptions*,
                      OrtSession**>
    CreateSession;
inline constexpr Call<9, OrtStatus*, OrtSession*, const OrtRunOptions*, const char* const*,
                      const OrtValue* const*, size_t, const char* const*, size_t, OrtValue**>
    Run;
inline constexpr Call<10, OrtStatus*, OrtSessionOptions**> CreateSessionOptions;
inline constexpr Call<24, OrtStatus*, OrtSessionOptions*, int> SetIntraOpNumThreads;
inline constexpr Call<29, OrtStatus*, OrtSessionOptions*, const char*, void**>
    RegisterCustomOpsLibrary;
inline constexpr Call<30, OrtStatus*, const OrtSession*, size_t*> SessionGetInputCount;
inline constexpr Call<31, OrtStatus*, const OrtSession*, size_t*> SessionGetOutputCount;
inline constexpr Call<36, OrtStatus*, const OrtSession*, size_t, OrtAllocator*, char**>
    SessionGetInputName;
inline constexpr Call<37, OrtStatus*, const OrtSession*, size_t, OrtAllocator*, char**>
    SessionGetOutputName;
inline constexpr Call<49, OrtStatus*, const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t,
                      int, OrtValue**>
    CreateTensorWithDataAsOrtValue;
inline constexpr Call<51, OrtStatus*, OrtValue*, void**> GetTensorMutableData;
inline constexpr Call<60, OrtStatus*, const OrtTensorTypeAndShapeInfo*, int*> GetTensorElementType;
inline constexpr Call<64, OrtStatus*, const OrtTensorTypeAndShapeInfo*, size_t*>
    GetTensorShapeElementCount;
inline constexpr Call<65, OrtStatus*, const OrtValue*, OrtTensorTypeAndShapeInfo**>
    GetTensorTypeAndShape;
inline constexpr Call<69, OrtStatus*, int, int, OrtMemoryInfo**> CreateCpuMemoryInfo;
inline constexpr Call<76, OrtStatus*, OrtAllocator*, void*> AllocatorFree;
inline constexpr Call<78, OrtStatus*, OrtAllocator**> GetAllocatorWithDefaultOptions;
inline constexpr Call<92, void, OrtEnv*> ReleaseEnv;
inline constexpr Call<93, void, OrtStatus*> ReleaseStatus;
inline constexpr Call<94, void, OrtMemoryInfo*> ReleaseMemoryInfo;
inline constexpr Call<95, void, OrtSession*> ReleaseSession;
inline constexpr Call<96, void, OrtValue*> ReleaseValue;
inline constexpr Call<99, void, OrtTensorTypeAndShapeInfo*> ReleaseTensorTypeAndShapeInfo;
inline constexpr Call<100, void, OrtSessionOptions*> ReleaseSessionOptions;
inline constexpr Call<130, OrtStatus*, OrtSessionOptions*, const char*, const char*>
    AddSessionConfigEntry;

}  // namespace abi
