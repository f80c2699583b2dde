/* The one function of libfanin_ort_ops.so, for programs that link it. Others give ONNX Runtime the
 * library's path: api->RegisterCustomOpsLibrary_V2(options, path). */
#ifndef FANIN_ORT_OPS_H
#define FANIN_ORT_OPS_H

struct OrtApiBase;
struct OrtSessionOptions;
struct OrtStatus;

#ifdef __cplusplus
extern "C" {
#endif

/* Registers the ops of the domain ai.fanin for all sessions that are created with these options.
 * Give it OrtGetApiBase() of onnxruntime 1.17 or newer. Set the session config entry
 * "fanin.threads" to the number of intra-op threads before. Returns NULL, or a status that the
 * caller releases. */
struct OrtStatus* RegisterCustomOps(struct OrtSessionOptions* options,
                                    const struct OrtApiBase* base);

#ifdef __cplusplus
}
#endif

#endif
