#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <algorithm>
#include <system_error>

#include "core/shared_library.h"

namespace fanin {
namespace {

std::wstring wide(const std::string& utf8) {
  const int length = static_cast<int>(utf8.size());
  std::wstring text(utf8.size(), L'\0');
  text.resize(static_cast<size_t>(
      MultiByteToWideChar(CP_UTF8, 0, utf8.data(), length, text.data(), length)));
  return text;
}

std::string utf8(const std::wstring& wide) {
  std::string text(3 * wide.size(), '\0');  // of a UTF-16 unit at most
  text.resize(static_cast<size_t>(
      WideCharToMultiByte(CP_UTF8, 0, wide.data(), static_cast<int>(wide.size()), text.data(),
                          static_cast<int>(text.size()), nullptr, nullptr)));
  return text;
}

HMODULE module_of(const void* address, DWORD flags) {
  HMODULE module = nullptr;
  GetModuleHandleExW(flags | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, static_cast<LPCWSTR>(address),
                     &module);
  return module;
}

}  // namespace

bool has_library(const std::string& path) {
  return GetFileAttributesW(wide(path).c_str()) != INVALID_FILE_ATTRIBUTES;
}

void* open_library(const std::string& path, std::string& problem) {
  void* library = LoadLibraryW(wide(path).c_str());
  if (library == nullptr)
    problem = std::system_category().message(static_cast<int>(GetLastError()));
  return library;
}

void close_library(void* library) { FreeLibrary(static_cast<HMODULE>(library)); }

void* find_symbol(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

std::string library_of(const void* address) {
  const HMODULE module = module_of(address, GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT);
  if (module == nullptr) return "";
  constexpr size_t kLongest = 32768;  // of a path, in UTF-16 units
  std::wstring path(kLongest, L'\0');
  path.resize(GetModuleFileNameW(module, path.data(), kLongest));
  std::replace(path.begin(), path.end(), L'\\', L'/');
  return utf8(path);
}

void keep_library_of(const void* address) { module_of(address, GET_MODULE_HANDLE_EX_FLAG_PIN); }

}  // namespace fanin
