// Compiled only if FANIN_ORT_INCLUDE_DIR is the folder of the official header: every slot that
// fanin calls and every field of OrtCustomOp must have the position of that header. Static
// assertions only.
#include <onnxruntime_c_api.h>

#include <cstddef>
#include <type_traits>

#include "ort/abi.h"

// Inside namespace fanin, so that OrtStatus is fanin's type and ::OrtStatus the header's.
namespace fanin::ort {
namespace {

// Two function types agree when they take and return values of the same size and kind. The types
// themselves differ: ours have their own opaque structs and plain ints for the header's enums.
template <typename A, typename B>
constexpr bool same_kind() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_void_v<A> && std::is_void_v<B>;
  } else {
    return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
           std::is_floating_point_v<A> == std::is_floating_point_v<B>;
  }
}

template <typename Function>
struct Signature;
template <typename Result, typename... Parameters>
struct Signature<Result (*)(Parameters...)> {
  template <typename OtherResult, typename... OtherParameters>
  static constexpr bool agrees(OtherResult (*)(OtherParameters...)) {
    if constexpr (sizeof...(Parameters) != sizeof...(OtherParameters)) {
      return false;
    } else {
      return same_kind<Result, OtherResult>() && (same_kind<Parameters, OtherParameters>() && ...);
    }
  }
};

// The header's functions are noexcept, which is part of a function's type.
template <typename Function>
struct WithoutNoexcept;
template <typename Result, typename... Parameters>
struct WithoutNoexcept<Result (*)(Parameters...)> {
  using type = Result (*)(Parameters...);
};
template <typename Result, typename... Parameters>
struct WithoutNoexcept<Result (*)(Parameters...) noexcept> {
  using type = Result (*)(Parameters...);
};

template <typename Ours, typename Official>
constexpr bool agree() {
  using Plain = typename WithoutNoexcept<Official>::type;
  return Signature<Ours>::agrees(static_cast<Plain>(nullptr));
}

#define FANIN_CHECK_SLOT(slot, since, result, name, parameters)                                   \
  static_assert(offsetof(::OrtApi, name) == (slot) * sizeof(void*), #name " is not slot " #slot); \
  static_assert(agree<result(*) parameters, decltype(::OrtApi::name)>(),                          \
                #name " has other parameters");
FANIN_ORT_SLOTS(FANIN_CHECK_SLOT)
#undef FANIN_CHECK_SLOT

static_assert(offsetof(::OrtApiBase, GetApi) == offsetof(OrtApiBase, GetApi));
static_assert(offsetof(::OrtApiBase, GetVersionString) == offsetof(OrtApiBase, GetVersionString));

#define FANIN_CHECK_FIELD(name)                                                \
  static_assert(offsetof(::OrtCustomOp, name) == offsetof(OrtCustomOp, name)); \
  static_assert(agree<decltype(OrtCustomOp::name), decltype(::OrtCustomOp::name)>());
static_assert(offsetof(::OrtCustomOp, version) == offsetof(OrtCustomOp, version));
FANIN_CHECK_FIELD(CreateKernel)
FANIN_CHECK_FIELD(GetName)
FANIN_CHECK_FIELD(GetExecutionProviderType)
FANIN_CHECK_FIELD(GetInputType)
FANIN_CHECK_FIELD(GetInputTypeCount)
FANIN_CHECK_FIELD(GetOutputType)
FANIN_CHECK_FIELD(GetOutputTypeCount)
FANIN_CHECK_FIELD(KernelCompute)
FANIN_CHECK_FIELD(KernelDestroy)
FANIN_CHECK_FIELD(GetInputCharacteristic)
FANIN_CHECK_FIELD(GetOutputCharacteristic)
FANIN_CHECK_FIELD(GetInputMemoryType)
FANIN_CHECK_FIELD(GetVariadicInputMinArity)
FANIN_CHECK_FIELD(GetVariadicInputHomogeneity)
FANIN_CHECK_FIELD(GetVariadicOutputMinArity)
FANIN_CHECK_FIELD(GetVariadicOutputHomogeneity)
FANIN_CHECK_FIELD(CreateKernelV2)
FANIN_CHECK_FIELD(KernelComputeV2)
FANIN_CHECK_FIELD(InferOutputShapeFn)
FANIN_CHECK_FIELD(GetStartVersion)
FANIN_CHECK_FIELD(GetEndVersion)
FANIN_CHECK_FIELD(GetMayInplace)
FANIN_CHECK_FIELD(ReleaseMayInplace)
FANIN_CHECK_FIELD(GetAliasMap)
FANIN_CHECK_FIELD(ReleaseAliasMap)
#undef FANIN_CHECK_FIELD

static_assert(int{kFail} == ORT_FAIL && int{kInvalidArgument} == ORT_INVALID_ARGUMENT);
static_assert(int{kUndefined} == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED);
static_assert(int{kFloat} == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
static_assert(int{kUint8} == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8);
static_assert(int{kInt8} == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8);
static_assert(int{kUint16} == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16);
static_assert(int{kInt16} == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16);
static_assert(int{kInt32} == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32);
static_assert(int{kInt64} == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
static_assert(int{kString} == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
static_assert(int{kBool} == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
static_assert(int{kFloat16} == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16);
static_assert(int{kDouble} == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE);
static_assert(int{kUint32} == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32);
static_assert(int{kUint64} == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64);
static_assert(int{kBfloat16} == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16);
static_assert(int{kRequired} == INPUT_OUTPUT_REQUIRED);
static_assert(int{kCpuInput} == OrtMemTypeCPUInput);
static_assert(int{kDefaultMemory} == OrtMemTypeDefault);
static_assert(int{kCpuDevice} == OrtMemoryInfoDeviceType_CPU);
static_assert(int{kInfo} == ORT_LOGGING_LEVEL_INFO);
static_assert(int{kWarning} == ORT_LOGGING_LEVEL_WARNING);
static_assert(int{kIntAttribute} == ORT_OP_ATTR_INT);
static_assert(int{kIntsAttribute} == ORT_OP_ATTR_INTS);

}  // namespace
}  // namespace fanin::ort
