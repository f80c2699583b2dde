# Build for Linux with musl (Alpine), by the clang and libc++ of zig (PyPI package ziglang):
#   cmake -S . -B build/musl -DCMAKE_TOOLCHAIN_FILE=cmake/x86_64-linux-musl.cmake -DFANIN_PYTHON=OFF
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(FANIN_ZIG_TARGET x86_64-linux-musl)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
