# Build for macOS by the clang and libc++ of zig (PyPI package ziglang):
#   cmake -S . -B build/macos -DCMAKE_TOOLCHAIN_FILE=cmake/x86_64-macos.cmake -DFANIN_PYTHON=OFF
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(FANIN_ZIG_TARGET x86_64-macos)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
