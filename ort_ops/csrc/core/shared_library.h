// Shared libraries at run time: dlopen and its kin, or what Windows has instead.
#pragma once

#include <string>

namespace fanin {

// Whether a file is there, readable or not.
bool has_library(const std::string& path);

// Loads a library by its path, or by a name that the system looks up; its symbols stay its own.
// Null if that fails, with the system's reason.
void* open_library(const std::string& path, std::string& problem);

void close_library(void* library);

// The address of an exported symbol; null if there is none.
void* find_symbol(void* library, const char* name);

// The path of the loaded library that contains the address, as it was loaded; on Windows with '/'.
// Empty if there is none.
std::string library_of(const void* address);

// Keeps that library loaded until the process ends, whoever unloads it.
void keep_library_of(const void* address);

}  // namespace fanin
