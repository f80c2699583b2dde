// Errors inside the library are exceptions; across the ABI they are statuses. Nothing else crosses.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "ort/abi.h"

namespace fanin::ort {

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Throws what a status of the runtime says, and frees it.
inline void check(const Api& api, OrtStatus* status) {
  if (status == nullptr) return;
  const Error error(static_cast<ErrorCode>(api.GetErrorCode(status)), api.GetErrorMessage(status));
  api.ReleaseStatus(status);
  throw error;
}

// For calls that are allowed to fail: whether it succeeded.
inline bool succeeded(const Api& api, OrtStatus* status) {
  if (status == nullptr) return true;
  api.ReleaseStatus(status);
  return false;
}

// A status that says "where: what".
inline OrtStatus* make_status(const Api& api, ErrorCode code, const char* where,
                              const char* what) noexcept {
  try {
    return api.CreateStatus(static_cast<int>(code), (std::string(where) + ": " + what).c_str());
  } catch (...) {  // no memory for the sentence
    return api.CreateStatus(static_cast<int>(code), what);
  }
}

// Runs body() and returns null, or the exception that it threw as a status. `where` names the place
// for the user; the body may still point it to a better name. It is no std::string, since making
// one in the call could throw, and a callback of the runtime must not.
template <typename Body>
OrtStatus* guarded(const Api& api, const char* const& where, Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return make_status(api, error.code(), where, error.what());
  } catch (const std::bad_alloc&) {
    return make_status(api, kFail, where, "out of memory");
  } catch (const std::exception& error) {
    return make_status(api, kFail, where, error.what());
  } catch (...) {
    return make_status(api, kFail, where, "unknown exception");
  }
}

// An object of the runtime that we must release.
template <typename T>
using Owned = std::unique_ptr<T, std::function<void(T*)>>;

}  // namespace fanin::ort
