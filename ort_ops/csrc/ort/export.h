// Marks a function that a shared library exports.
#pragma once

#ifdef _WIN32
#define FANIN_EXPORT __declspec(dllexport)
#else
#define FANIN_EXPORT __attribute__((visibility("default")))
#endif
