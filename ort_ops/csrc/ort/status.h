// Errors are exceptions inside the library and statuses across the ABI, which no exception crosses.
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

// Throws the error of a status of the runtime, and frees the status.
inline void check(const Api& api, OrtStatus* status) {
  if (status == nullptr) return;
  const Error error(static_cast<ErrorCode>(api.GetErrorCode(status)), api.GetErrorMessage(status));
  api.ReleaseStatus(status);
  throw error;
}

// Whether a call that may fail succeeded.
inline bool succeeded(const Api& api, OrtStatus* status) {
  if (status == nullptr) return true;
  api.ReleaseStatus(status);
  return false;
}

// A status with the message "where: what".
inline OrtStatus* make_status(const Api& api, ErrorCode code, const char* where,
                              const char* what) noexcept {
  try {
    return api.CreateStatus(static_cast<int>(code), (std::string(where) + ": " + what).c_str());
  } catch (...) {  // no memory for the message
    return api.CreateStatus(static_cast<int>(code), what);
  }
}

// Runs body() and returns null, or its exception as a status. `where` names the place for the user;
// the body may replace it by a better name. It is not a std::string, since constructing one could
// throw, and a callback of the runtime must not.
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

// An object of the runtime that must be released.
template <typename T>
using Owned = std::unique_ptr<T, std::function<void(T*)>>;

}  // namespace fanin::ort
