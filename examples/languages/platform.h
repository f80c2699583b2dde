// What differs between systems: loading a library, the characters of ONNX Runtime's paths, raw
// input. Include onnxruntime_abi.h first.
#ifndef PLATFORM_H
#define PLATFORM_H

#ifdef _WIN32

#define WIN32_LEAN_AND_MEAN
#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <windows.h>

enum { MAX_PATH_CHARS = 4096 };

// A path as the runtime takes it, from one in the system's code page, as `main` gets it; empty,
// which no call accepts, if it is too long.
static inline const ORTCHAR_T* runtime_path(const char* path, ORTCHAR_T (*room)[MAX_PATH_CHARS]) {
  return MultiByteToWideChar(CP_ACP, 0, path, -1, *room, MAX_PATH_CHARS) ? *room : L"";
}

static inline void* load_library(const char* path) {
  ORTCHAR_T room[MAX_PATH_CHARS];
  return LoadLibraryW(runtime_path(path, &room));
}

static inline void* library_symbol(void* library, const char* name) {
  return (void*)GetProcAddress((HMODULE)library, name);
}

static inline const char* load_problem(void) {
  static char text[32];
  snprintf(text, sizeof text, "Windows error %lu", GetLastError());
  return text;
}

static inline void read_raw_input(void) { _setmode(_fileno(stdin), _O_BINARY); }

#else

#include <dlfcn.h>

enum { MAX_PATH_CHARS = 1 };

static inline const ORTCHAR_T* runtime_path(const char* path, ORTCHAR_T (*room)[MAX_PATH_CHARS]) {
  (void)room;
  return path;
}

static inline void* load_library(const char* path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }
static inline void* library_symbol(void* library, const char* name) { return dlsym(library, name); }
static inline const char* load_problem(void) { return dlerror(); }
static inline void read_raw_input(void) {}

#endif
#endif
