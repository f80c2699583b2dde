#include <dlfcn.h>
#include <unistd.h>

#include "core/shared_library.h"

namespace fanin {

bool has_library(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

void* open_library(const std::string& path, std::string& problem) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    problem = text == nullptr ? "unknown error" : text;
  }
  return library;
}

void close_library(void* library) { dlclose(library); }

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

std::string library_of(const void* address) {
  Dl_info info{};
  const bool found = dladdr(address, &info) != 0;
  return found && info.dli_fname != nullptr ? info.dli_fname : "";
}

void keep_library_of(const void* address) {
  void* library = dlopen(library_of(address).c_str(), RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (library != nullptr) dlclose(library);  // the count of its users; the flag stays
}

}  // namespace fanin
